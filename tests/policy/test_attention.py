"""Attention of sequences without padding, by torch and by the kernels, beside each sequence alone in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from woodshed.policy.attention import Ragged, causal_attend
from woodshed.policy.native import fused
from woodshed.policy.native.build import NoKernels

Attention = Callable[[Ragged, Tensor, Tensor, Tensor], Tensor]
LAYOUTS = [(0, (1,)), (0, (7, 1, 150)), (0, (333,)), (5, (1, 1)), (20, (7, 130, 3)), (100, (60,))]


def by_kernels(layout: Ragged, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused._Attention.apply(layout, q, k, v)


@pytest.fixture(params=["torch", "kernels on 1", "kernels on 2"])
def attention(request: pytest.FixtureRequest) -> Iterator[Attention]:
    if request.param == "torch":
        yield Ragged.attend
        return
    try:
        fused._library()
    except NoKernels as why:
        pytest.skip(str(why))
    before = torch.get_num_threads()
    torch.set_num_threads(int(request.param[-1]))
    yield by_kernels
    torch.set_num_threads(before)


def one_by_one(layout: Ragged, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the queries of all positions; each sequence is computed with its beginning, by causal attention."""
    first, parts = layout.shared, []
    if first:
        parts.append(causal_attend()(0, *(x[None, :first] for x in (q, k, v)))[0])
    at = first
    for length in layout.lengths:
        own = [torch.cat((x[:first], x[at : at + length]))[None] for x in (q, k, v)]
        parts.append(causal_attend()(0, *own)[0, first:])
        at += length
    return torch.cat(parts)


def differentiated(function: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 4, 32), (6, 2, 16), (3, 1, 64)])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_each_sequence_is_attended_to_as_if_it_were_alone(
    attention: Attention, layout: tuple[int, tuple[int, ...]], heads: int, kv_heads: int, width: int, some: bool
) -> None:
    shared, lengths = layout
    size = shared + sum(lengths)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (2 * torch.randn(size, h, width, generator=generator) for h in (heads, kv_heads, kv_heads, heads))
    ends = torch.arange(size)
    if some:  # of a random half of the positions, among them none of a whole sequence where there are several
        ends = ends[
            (torch.rand(size, generator=generator) < 0.5) & ((ends >= shared + lengths[0]) | (len(lengths) == 1))
        ]
    ragged = Ragged(shared, lengths, ends)
    got = differentiated(lambda *x: attention(ragged, *x), [q[ends], k, v], grad[ends])
    exact = differentiated(
        lambda q, k, v: one_by_one(ragged, torch.zeros(size, heads, width).double().index_copy(0, ends, q), k, v)[ends],
        [q[ends].double(), k.double(), v.double()],
        grad[ends],
    )
    for mine, wanted in zip(got, exact, strict=True):
        assert mine.shape == wanted.shape and mine.dtype == torch.float32
        largest = max([1.0, *wanted.abs().flatten().tolist()])
        torch.testing.assert_close(mine.double(), wanted, rtol=0, atol=5e-6 * largest)


def test_bits_do_not_depend_on_threads() -> None:
    try:
        fused._library()
    except NoKernels as why:
        pytest.skip(str(why))
    before, found = torch.get_num_threads(), []
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(300, h, 32, generator=generator) for h in (4, 2, 2))
    layout = Ragged(40, (100, 60, 100), torch.arange(0, 300, 3))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(differentiated(lambda *x: by_kernels(layout, *x), [q[::3], k, v], torch.ones(100, 4, 32)))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
