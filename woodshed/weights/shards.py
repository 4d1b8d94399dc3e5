"""Regions of tensors that ranks hold, and the choice of the rank that publishes what several hold."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Region:
    """A block of ``shape`` elements from ``start`` on, in a tensor of shape ``whole``."""

    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        ends = [a + n for a, n in zip(self.start, self.shape, strict=True)]
        if min((*self.start, *self.shape), default=0) < 0 or any(e > w for e, w in zip(ends, self.whole, strict=True)):
            raise ValueError(f"region {self.shape} at {self.start} lies outside of a tensor of shape {self.whole}")

    @staticmethod
    def all_of(shape: tuple[int, ...]) -> Region:
        return Region(shape, (0,) * len(shape), shape)

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape))

    @property
    def suffix(self) -> str:
        """``[0:4,8:16]``; empty for the whole tensor."""
        if self.is_whole:
            return ""
        return "[" + ",".join(f"{a}:{a + n}" for a, n in zip(self.start, self.shape)) + "]"


def overlap(regions: Iterable[Region]) -> bool:
    """Return whether two regions of a tensor have an element in common."""
    ordered = sorted((region for region in regions if region.numel), key=lambda region: region.start)
    for i, one in enumerate(ordered):
        for other in islice(ordered, i + 1, None):
            both = list(zip(one.start, one.shape, other.start, other.shape))
            if both and other.start[0] >= one.start[0] + one.shape[0]:
                break  # and so do all that follow
            if all(a < c + n and c < a + m for a, m, c, n in both):
                return True
    return False


@dataclass(frozen=True)
class Shard:
    """The region of a tensor that this rank holds. Every element of the tensor is in exactly one rank's shards."""

    tensor: Tensor
    region: Region


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return True for a DTensor. Its module takes a quarter of a process's start to import, so it is only looked at
    if something else has imported it."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)  # none while it is being imported
    return kind is not None and isinstance(value, kind)


def shard_of(value: Tensor | NDArray | Shard) -> Shard:
    """Return a tensor with its region: a plain tensor or array is whole, a DTensor knows its own."""
    if isinstance(value, Shard):
        if tuple(value.tensor.shape) != value.region.shape:
            raise ValueError(
                f"a shard of shape {tuple(value.tensor.shape)} does not fill its region {value.region.shape}"
            )
        return value
    if is_dtensor(value):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(p.is_partial() for p in value.placements):
            raise ValueError(
                f"a DTensor with partial placements {value.placements} is not reduced yet; redistribute it first"
            )
        shape, start = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        return Shard(value.to_local(), Region(tuple(value.shape), tuple(start), tuple(shape)))
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    return Shard(tensor, Region.all_of(tuple(tensor.shape)))


def own_part(
    state: Mapping[str, Tensor | NDArray | Shard], rank: int, world: int
) -> dict[str, Tensor | NDArray | Shard]:
    """Select what ``rank`` of ``world`` publishes of ``state``, so that everything is published once and the load is
    even.

    Plain tensors are assumed to be the same on all ranks and are distributed by size. Each rank publishes its shard of
    a DTensor; of several replicas, only the first does. A Shard is always published.
    """
    if world == 1:
        return dict(state)
    sizes = {
        name: prod(value.shape) for name, value in state.items() if not (isinstance(value, Shard) or is_dtensor(value))
    }
    owner, loads = {}, [0] * world
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        owner[name] = min(range(world), key=lambda r: (loads[r], r))
        loads[owner[name]] += sizes[name]
    return {name: value for name, value in state.items() if owner.get(name, rank) == rank and publishes(value)}


def publishes(value: Tensor | NDArray | Shard) -> bool:
    """Return whether this rank publishes its shard of a DTensor; True for anything else."""
    if not is_dtensor(value):
        return True
    at = value.device_mesh.get_coordinate()
    if at is None or not value.to_local().numel():
        return False  # The rank is outside the tensor's mesh, or its shard is empty because the tensor has few rows.
    return all(where == 0 for where, placement in zip(at, value.placements) if placement.is_replicate())
