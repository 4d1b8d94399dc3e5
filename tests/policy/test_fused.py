"""Fused operators beside the plain formulas in float64: values, and the gradients of all inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from woodshed.policy import operators as plain
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.native import fused
from woodshed.policy.native.build import NoKernels


def _without_kernels() -> str:
    try:
        fused._library()
    except NoKernels as why:
        return str(why)
    return ""


pytestmark = pytest.mark.skipif(bool(_without_kernels()), reason=_without_kernels() or "kernels are there")
ROWS = [(0,), (1,), (3, 5), (333,)]
EPS = 1e-6


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def differentiated(function: Callable, inputs: list[Tensor | None], outputs: int, dtype: torch.dtype):
    """Values of the first ``outputs`` results and gradients of all inputs, from gradients of the results that are
    random but the same for every dtype."""
    leaves = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
    results = function(*leaves)
    results = (results,) if isinstance(results, Tensor) else results
    used = results[:outputs]
    total = sum((y * drawn(*y.shape, seed=9 + i).to(dtype)).sum() for i, y in enumerate(used))
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [y.detach() for y in used], torch.autograd.grad(total, wanted, allow_unused=True)


def assert_same(ours: Callable, theirs: Callable, inputs: list[Tensor | None], outputs: int = 1) -> None:
    got, wanted = (differentiated(f, inputs, outputs, d) for f, d in ((ours, torch.float32), (theirs, torch.float64)))
    for mine, exact in zip((*got[0], *got[1]), (*wanted[0], *wanted[1]), strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None:
            assert mine.dtype == torch.float32 and mine.shape == exact.shape
            torch.testing.assert_close(mine.double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("leading", ROWS, ids=str)
@pytest.mark.parametrize("width", [1, 13, 128, 577])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("total_used", [False, True])
def test_add_norm(threads: int, leading: tuple[int, ...], width: int, added: bool, total_used: bool) -> None:
    x, delta, weight = drawn(*leading, width), drawn(*leading, width, seed=1), drawn(width, seed=2)
    if len(leading) == 1 and leading[0] > 1:
        x[1] = delta[1] = 0.0  # a row of zeros: only eps is left

    def both(function: Callable, x: Tensor, weight: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        total, normal = function(x, delta, weight, EPS)
        return normal, total

    inputs = [x, weight, delta] if added else [x, weight]
    outputs = 2 if total_used else 1
    # the gradient at a row of zeros is a thousand times larger: 1 / sqrt(eps)
    assert_same(partial(both, fused.FUSED.add_norm), partial(both, plain.add_norm), inputs, outputs)


@pytest.mark.parametrize("leading", ROWS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(1, 1, 2), (4, 2, 14), (3, 1, 64)])
@pytest.mark.parametrize("normed", [False, True])
def test_split_heads(threads: int, leading: tuple[int, ...], heads: int, kv_heads: int, width: int, normed: bool):
    qkv = drawn(*leading, (heads + 2 * kv_heads) * width)
    angle = drawn(*leading, width // 2, seed=3)
    turn = torch.cat((angle.cos(), angle.cos(), -angle.sin(), angle.sin()), -1)
    norms = [drawn(width, seed=4), drawn(width, seed=5)] if normed else [None, None]

    def split(function: Callable, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None):
        return function(qkv, q_norm, k_norm, turn.to(qkv.dtype), heads, kv_heads, EPS)

    ours, theirs = partial(split, fused.FUSED.split_heads), partial(split, plain.split_heads)
    assert_same(ours, theirs, [qkv, *norms], outputs=3)


@pytest.mark.parametrize("leading", ROWS, ids=str)
@pytest.mark.parametrize("width", [1, 13, 352])
def test_swiglu(threads: int, leading: tuple[int, ...], width: int) -> None:
    assert_same(fused.FUSED.swiglu, plain.swiglu, [drawn(*leading, 2 * width) * 8])


@pytest.mark.parametrize(("rows", "width"), [(0, 7), (1, 1), (5, 61), (300, 1280)])
@pytest.mark.parametrize("forbidden", [False, True])
def test_cross_entropy(threads: int, rows: int, width: int, forbidden: bool) -> None:
    """Against autograd of log softmax; forbidden tokens are exactly without gradient."""
    logits, slope = drawn(rows, width) * 10, drawn(rows, seed=1)
    slope[::3] = 0.0
    target = torch.randint(0, width, (rows,), generator=torch.Generator().manual_seed(2))
    out = torch.zeros(rows, width, dtype=torch.bool)
    if forbidden:
        out = (drawn(rows, width, seed=3) > 0.5).scatter(1, target[:, None], False)
    logits.masked_fill_(out, -torch.inf)
    exact = logits.double().requires_grad_()
    logp = exact.log_softmax(-1)
    (wanted,) = torch.autograd.grad((logp.gather(1, target[:, None]).squeeze(1) * slope).sum(), exact)
    lse, entropy = fused.FUSED.logsumexp(logits, True)
    torch.testing.assert_close(lse.double(), exact.detach().logsumexp(-1), rtol=1e-6, atol=1e-5)
    expected = -(logp.exp() * logp.masked_fill(out, 0.0)).sum(-1).detach()
    torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(fused.FUSED.logsumexp(logits, False)[0], lse)
    grad = fused.FUSED.logits_gradient(logits, target, lse, slope)
    assert grad is logits and not grad[out].any() and not grad[slope == 0].any()
    torch.testing.assert_close(grad.double(), wanted, rtol=2e-5, atol=1e-5)


def test_a_nan_stays_one() -> None:
    """A broken gradient has to reach the norm, by which the step is skipped."""
    logits = drawn(2, 40)
    logits[1, 17] = torch.nan
    lse, _ = fused.FUSED.logsumexp(logits, False)
    assert lse[0].isfinite() and lse[1].isnan()
    gradient = fused.FUSED.logits_gradient(logits, torch.tensor([0, 0]), lse, torch.ones(2))
    assert gradient[0].isfinite().all() and gradient[1].isnan().all()


def test_bits_do_not_depend_on_threads() -> None:
    x, weight, found = drawn(517, 96), drawn(96, seed=1), []
    before = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(differentiated(lambda x, w: fused.FUSED.add_norm(x, None, w, EPS), [x, weight], 2, torch.float32))
    torch.set_num_threads(before)
    for values, gradients in found[1:]:
        assert all(map(torch.equal, (*values, *gradients), (*found[0][0], *found[0][1])))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    x, weight = drawn(5, 8).to(dtype), drawn(8, seed=1).to(dtype)
    assert torch.equal(fused.FUSED.add_norm(x, None, weight, EPS)[1], plain.add_norm(x, None, weight, EPS)[1])
    assert torch.equal(fused.FUSED.swiglu(x), plain.swiglu(x))
    turn = torch.ones(5, 4, dtype=dtype)
    ours, theirs = (o.split_heads(x, weight[:2], weight[:2], turn, 2, 1, EPS) for o in (fused.FUSED, plain.TORCH))
    assert all(map(torch.equal, ours, theirs))


SHAPES = [(1, 2, 16), (7, 30, 48), (130, 64, 16), (1100, 200, 96)]


def product(half: bool, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return fused._linear(half, x, weight, bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(threads: int, shape: tuple[int, int, int], with_bias: bool) -> None:
    rows, outputs, width = shape
    x, weight = drawn(rows, width) / width**0.5, drawn(outputs, width, seed=1)
    inputs = [x, weight, drawn(outputs, seed=2)] if with_bias else [x, weight]
    assert product(False, x, weight).grad_fn is None  # no gradient is wanted
    assert_same(partial(product, False), torch.nn.functional.linear, inputs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_rounds_its_operands_to_bfloat16_and_nothing_else(threads: int, shape: tuple[int, int, int]) -> None:
    rows, outputs, width = shape
    x, weight, grad = drawn(rows, width), drawn(outputs, width, seed=1), drawn(rows, outputs, seed=2)
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = product(True, *leaves)
    got = [y.detach(), *torch.autograd.grad(y, leaves, grad)]
    a, b, g = (t.bfloat16().double() for t in (x, weight, grad))
    for mine, exact in zip(got, (a @ b.T, g @ b, g.T @ a), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=4e-6 * float(exact.abs().max()))


def test_linear_keeps_infinities_and_nans() -> None:
    x, weight = drawn(4, 16), drawn(2, 16, seed=1)
    x[1, 3], x[2, 5] = torch.inf, torch.nan
    for half in (False, True):
        y = product(half, x, weight)
        assert y[[0, 3]].isfinite().all() and y[1].isinf().all() and y[2].isnan().all()


@pytest.mark.parametrize("half", [False, True])
def test_bits_of_linear_do_not_depend_on_threads(half: bool) -> None:
    before, found = torch.get_num_threads(), []
    leaves = drawn(1000, 96).requires_grad_(), drawn(200, 96, seed=1).requires_grad_()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        y = product(half, *leaves)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), leaves)])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("products", "flags", "amd", "expected"),
    [
        ("float32", {"avx512_bf16"}, True, False),
        ("float32", {"avx512_bf16", "amx_bf16"}, False, None),
        ("bfloat16", {"avx512_bf16"}, True, True),
        ("bfloat16", {"avx512_bf16", "amx_bf16"}, False, None),
        ("bfloat16", set(), True, None),
    ],
)
def test_products_are_ours_where_those_of_torch_are_slower(
    monkeypatch: pytest.MonkeyPatch, products: str, flags: set[str], amd: bool, expected: bool | None
) -> None:
    monkeypatch.setattr(fused, "has_flags", lambda *names: set(names) <= flags)
    monkeypatch.setattr(fused, "made_by_amd", lambda: amd)
    decoder = Decoder(
        DecoderConfig(vocab_size=32, d_model=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, d_ff=32)
    )
    fused.fuse(decoder, products)
    layer = decoder.layers[0].linear
    assert (layer.args[0] if isinstance(layer, partial) else None) is expected
    assert decoder.linear is torch.nn.functional.linear  # of the logits
