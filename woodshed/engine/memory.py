"""Memory that is read over and over, as the weights and the cache are."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes; of x86, and of arm64 with pages of 4 KiB."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Zeros ``shape``; on a CPU in huge pages where Linux gives them on request (it does by default), because looking
    up small ones takes a good part of the time in which a large tensor is read. Memory is taken page by page, when it
    is first written. Raises OSError where a CPU's address space is not enough."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if (device is not None and device.type != "cpu") or size < HUGE_PAGE:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # another system, or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))  # which keeps `memory`
