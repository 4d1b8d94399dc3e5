"""The bytes of a set of named tensors, whatever their dtype: what a weight version is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

State = Mapping[str, "Tensor | NDArray"]


@dataclass(frozen=True)
class TensorImage:
    """One tensor: raw little-endian bytes (uint8 ``[n]``), torch dtype name (``bfloat16``), shape, xxh3-128 hex digest.

    Bytes, not numbers, are what is compared and sent, so -0.0 and NaN payloads survive.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    checksum: str

    @property
    def itemsize(self) -> int:
        return dtype_of(self.dtype).itemsize

    def tensor(self) -> Tensor:
        """A tensor that shares these bytes; treat it as read-only."""
        if not len(self.data):
            return torch.empty(self.shape, dtype=dtype_of(self.dtype))
        return torch.from_numpy(self.data).view(dtype_of(self.dtype)).reshape(self.shape)


Image = dict[str, TensorImage]


def take(state: State) -> Image:
    """A copy of the bytes of every tensor, so that the caller may go on changing them."""
    return {name: _take(value) for name, value in state.items()}


def digest(image: Image) -> str:
    """One name for the whole set: xxh3-128 over names, dtypes, shapes and checksums in name order."""
    hasher = xxhash.xxh3_128()
    for name in sorted(image):
        part = image[name]
        hasher.update(f"{name}\0{part.dtype}\0{part.shape}\0{part.checksum}\n".encode())
    return hasher.hexdigest()


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def checksum(data: NDArray[np.uint8]) -> str:
    return xxhash.xxh3_128_hexdigest(data.data)


def _take(value: Tensor | NDArray) -> TensorImage:
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().copy()
    return TensorImage(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data, checksum(data))
