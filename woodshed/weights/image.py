"""Images: the bytes of a set of named tensors of any dtype, which a weight version consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from .errors import ChainError
from .shards import Region, Shard, overlap, shard_of

State = Mapping[str, "Tensor | NDArray | Shard"]


@dataclass(frozen=True)
class Piece:
    """A region of one tensor: raw little-endian bytes (uint8 ``[n]``), torch dtype name (``bfloat16``), position.

    Bytes rather than numbers are compared and sent, so -0.0 and NaN payloads survive.
    """

    name: str
    dtype: str
    region: Region
    data: NDArray[np.uint8]

    @property
    def key(self) -> str:
        """Name of this region of this tensor; the tensor's own name if the region is the whole tensor."""
        return self.name + self.region.suffix

    @property
    def itemsize(self) -> int:
        return dtype_of(self.dtype).itemsize

    @cached_property
    def checksum(self) -> str:
        """xxh3-128 of the bytes, as hex."""
        return xxhash.xxh3_128_hexdigest(self.data.data)

    def tensor(self) -> Tensor:
        """A tensor of the region's shape that shares these bytes; treat it as read-only."""
        if not len(self.data):
            return torch.empty(self.region.shape, dtype=dtype_of(self.dtype))
        return torch.from_numpy(self.data).view(dtype_of(self.dtype)).reshape(self.region.shape)


Image = dict[str, Piece]
"""Pieces by key."""


def take(state: State) -> Image:
    """Copy the bytes of every tensor, so that the caller may go on changing the tensors."""
    pieces = (_take(name, value) for name, value in state.items())
    return {piece.key: piece for piece in pieces}


def digest(pieces: Iterable[Piece]) -> int:
    """Digest of a set of pieces: the sum, modulo 2**128, of an xxh3-128 of each (key, dtype, shape, checksum).

    The sum does not depend on order, and the digests of the ranks' pieces add up to that of the version.
    """
    return sum(map(_identity, pieces)) % (1 << 128)


def assemble(image: Image) -> dict[str, Tensor]:
    """Assemble whole tensors, by name. A tensor that is a single piece shares its bytes: do not write into it.

    Raises ChainError if the pieces of a tensor do not cover it exactly.
    """
    out: dict[str, Tensor] = {}
    split: dict[str, list[Piece]] = {}
    for piece in image.values():
        if piece.region.is_whole:
            out[piece.name] = piece.tensor()
        else:
            split.setdefault(piece.name, []).append(piece)
    for name, pieces in split.items():
        first = pieces[0]
        whole = torch.empty(first.region.whole, dtype=dtype_of(first.dtype))
        covered = sum(piece.region.numel for piece in pieces)
        if covered != whole.numel() or {(p.dtype, p.region.whole) for p in pieces} != {
            (first.dtype, first.region.whole)
        }:
            raise ChainError(
                f"{name}: its {len(pieces)} pieces hold {covered} of {whole.numel()} elements of "
                f"{first.dtype} {list(first.region.whole)}; every rank must publish its own part of each tensor"
            )
        if overlap(piece.region for piece in pieces):
            raise ChainError(f"{name}: some of its {len(pieces)} pieces overlap; one rank must publish each element")
        for piece in pieces:
            whole[piece.region.slices] = piece.tensor()
        out[name] = whole
    return out


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def _identity(piece: Piece) -> int:
    text = f"{piece.key}\0{piece.dtype}\0{piece.region.whole}\0{piece.checksum}"
    return xxhash.xxh3_128_intdigest(text.encode())


def _take(name: str, value: Tensor | NDArray | Shard) -> Piece:
    shard = shard_of(value)
    source = shard.tensor.detach()
    tensor = source.to("cpu").contiguous()
    if tensor.data_ptr() == source.data_ptr():
        tensor = tensor.clone()
    data = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)
    return Piece(name, str(tensor.dtype).removeprefix("torch."), shard.region, data)
