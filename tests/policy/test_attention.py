"""Attention of pieces of sequences without padding, by torch and by the kernels, beside each piece with all that it
continues in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from woodshed.policy.attention import Ragged, causal_attend
from woodshed.policy.native import fused
from woodshed.policy.native.build import NoKernels

Attention = Callable[[Ragged, Tensor, Tensor, Tensor], Tensor]
LAYOUTS = [
    ((1,), (-1,)),
    ((7, 1, 150), (-1, -1, -1)),
    ((333,), (-1,)),
    ((5, 1, 1), (-1, 0, 0)),
    ((20, 7, 130, 3), (-1, 0, 0, 0)),
    ((100, 60), (-1, 0)),
    ((20, 7, 30, 3, 5, 60, 9, 40, 1), (-1, 0, 1, 1, 0, -1, 5, 3, -1)),  # several beginnings, one in another
    ((1, 1, 1, 1), (-1, 0, 1, 2)),
]


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
    """Attention of the queries of all positions; each piece is computed after all that it continues, by causal
    attention."""
    parts, before, at = [], [], 0
    for length, parent in zip(layout.lengths, layout.parents, strict=True):
        places = torch.cat((before[parent] if parent >= 0 else torch.zeros(0, dtype=int), at + torch.arange(length)))
        before.append(places)
        parts.append(causal_attend()(0, *(x[places][None] for x in (q, k, v)))[0, -length:])
        at += length
    return torch.cat(parts)


def differentiated(function: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 4, 32), (6, 2, 16), (3, 1, 64)])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_each_piece_is_attended_to_as_if_its_sequence_were_alone(
    attention: Attention,
    layout: tuple[tuple[int, ...], tuple[int, ...]],
    heads: int,
    kv_heads: int,
    width: int,
    some: bool,
) -> None:
    lengths, parents = layout
    size = sum(lengths)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (2 * torch.randn(size, h, width, generator=generator) for h in (heads, kv_heads, kv_heads, heads))
    ends = torch.arange(size)
    if some:  # of a random half of the positions, among them none of a whole piece where there are several
        ends = ends[(torch.rand(size, generator=generator) < 0.5) & ((ends >= lengths[0]) | (len(lengths) == 1))]
    ragged = Ragged(lengths, parents, ends)
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
    layout = Ragged((40, 100, 60, 100), (-1, 0, 0, 2), torch.arange(0, 300, 3))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(differentiated(lambda *x: by_kernels(layout, *x), [q[::3], k, v], torch.ones(100, 4, 32)))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
