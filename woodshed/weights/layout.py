"""Conversion between the tensors of a trainer or an engine and the canonical tensors of a version.

Versions hold one tensor per Hugging Face name. Trainers and engines fuse these tensors (query, key and value; gate and
up), stack them (experts), leave them out (a tied head) and keep shards of them. A ``Layout`` gives, for each local
tensor, the positions of regions of canonical tensors in it. ``split`` converts a trainer's shards to canonical ones,
``join`` canonical pieces to an engine's tensors; trainer and engine may have different layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state

from .delta import Wanted
from .errors import ChainError
from .image import Piece
from .shards import Region, Shard, is_dtensor, overlap, publishes, shard_of


@dataclass(frozen=True)
class Slot:
    """Position of a canonical tensor's region in a local tensor.

    ``region`` of the canonical tensor ``name`` begins at ``at`` in the local tensor. The local tensor may have
    additional leading axes, along which ``at`` is an index (the number of a stacked expert).
    """

    name: str
    region: Region
    at: tuple[int, ...]

    @property
    def local(self) -> tuple[tuple[int, int], ...]:
        """Start and end along every axis of the local tensor."""
        lead = len(self.at) - len(self.region.shape)
        return tuple((a, a + n) for a, n in zip(self.at, (1,) * lead + self.region.shape))


Layout = dict[str, list[Slot]]
"""Maps the name of a local tensor to the canonical regions in it."""


def decoder_layout(decoder: Decoder) -> Layout:
    """Layout of our own network in trainer and engine, derived from ``hf_state``'s views of its parameters."""
    owners = {p.untyped_storage()._cdata: (name, p) for name, p in decoder.named_parameters()}
    layout: Layout = {name: [] for name, _ in decoder.named_parameters()}
    for name, view in hf_state(decoder).items():
        local, parameter = owners[view.untyped_storage()._cdata]
        at, rest = [], view.storage_offset() - parameter.storage_offset()
        for stride in parameter.stride():
            at.append(rest // stride)
            rest %= stride
        layout[local].append(Slot(name, Region.all_of(tuple(view.shape)), tuple(at)))
    return layout


def split(state: Mapping[str, Tensor | Shard], layout: Layout) -> dict[str, Tensor | Shard]:
    """Convert a trainer rank's tensors (plain, DTensor, or Shard of a local tensor) to canonical ones, for
    ``Publisher``.

    Returns views, not copies. Tensors that are the same on all ranks stay plain. Of several replicas, only the first
    returns anything.
    """
    out: dict[str, Tensor | Shard] = {}
    for local, value in state.items():
        if local not in layout:
            raise ChainError(f"{local}: not in the layout, which has {', '.join(sorted(layout)[:3])}, ...")
        if not publishes(value):
            continue
        shard = shard_of(value)
        held = tuple((a, a + n) for a, n in zip(shard.region.start, shard.region.shape))
        for slot in layout[local]:
            common = _common(held, slot.local)
            if common is None:
                continue
            lead = len(slot.at) - len(slot.region.shape)
            tensor = shard.tensor[_inside(common, held)].reshape([b - a for a, b in common[lead:]])
            if not (isinstance(value, Shard) or is_dtensor(value)):
                out[slot.name] = tensor
                continue
            start = tuple(o + a - s for o, (a, _), s in zip(slot.region.start, common[lead:], slot.at[lead:]))
            out[slot.name] = Shard(tensor, Region(slot.region.whole, start, tuple(tensor.shape)))
    return out


def join(pieces: Iterable[Piece], layout: Layout, tensors: Mapping[str, Tensor]) -> None:
    """Copy canonical pieces into an engine's local tensors, converting dtype and device.

    Raises ChainError, before anything is written, if the pieces do not cover a local tensor.
    """
    by_name: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    for name, found in by_name.items():
        if overlap(piece.region for piece in found):
            raise ChainError(f"{name}: some of its {len(found)} pieces overlap; one rank must publish each element")
    copies: list[tuple[Tensor, Tensor]] = []
    for local, slots in layout.items():
        missing = tensors[local].numel()
        for slot in slots:
            lead = len(slot.at) - len(slot.region.shape)
            wanted = _bounds(slot.region)
            for piece in by_name.get(slot.name, []):
                if piece.region.whole != slot.region.whole:
                    raise ChainError(f"{slot.name}: published as {piece.region.whole}, expected {slot.region.whole}")
                held = _bounds(piece.region)
                common = _common(held, wanted)
                if common is None:
                    continue
                at = [slice(a, a + 1) for a in slot.at[:lead]]
                at += [slice(s + a - w, s + b - w) for s, (a, b), (w, _) in zip(slot.at[lead:], common, wanted)]
                source = piece.tensor()[_inside(common, held)]
                target = tensors[local].detach()[tuple(at)]
                missing -= target.numel()
                copies.append((target, source.reshape(target.shape)))
        if missing:
            raise ChainError(f"{local}: {missing} of {tensors[local].numel()} elements are not in the version")
    for target, source in copies:
        target.copy_(source)


def needs(layout: Layout) -> Wanted:
    """Return a filter for ``Follower(wanted=...)``: the pieces that overlap with ``layout``."""
    regions: dict[str, list[Region]] = {}
    for slots in layout.values():
        for slot in slots:
            regions.setdefault(slot.name, []).append(slot.region)

    def wanted(name: str, region: Region) -> bool:
        return any(_common(_bounds(region), _bounds(own)) is not None for own in regions.get(name, []))

    return wanted


Bounds = tuple[tuple[int, int], ...]


def _bounds(region: Region) -> Bounds:
    return tuple((a, a + n) for a, n in zip(region.start, region.shape))


def _common(one: Bounds, other: Bounds) -> Bounds | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(a < b for a, b in both) else None


def _inside(bounds: Bounds, outer: Bounds) -> tuple[slice, ...]:
    """Index of ``bounds`` in a tensor that holds ``outer``."""
    return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(bounds, outer))
