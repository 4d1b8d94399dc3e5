"""What this processor does well, where kernels are chosen by it.

Memory that is read over and over, as the weights and the cache are.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor


@cache
def _described() -> dict[str, str]:
    """The first processor of ``/proc/cpuinfo``; empty on other systems than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def made_by_amd() -> bool:
    """MKL, which torch multiplies float32 with, has its best kernels for other makers."""
    return _described().get("vendor_id") == "AuthenticAMD"


def kind() -> tuple[str, ...]:
    """What of the processor code is compiled for: the same at every start, as its clock is not."""
    return tuple(_described().get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping", "flags"))


@cache
def has_flags(*names: str) -> bool:
    """Whether the processor says that it has all of these, as ``/proc/cpuinfo`` names them."""
    return set(names) <= set(_described().get("flags", "").split())


def onednn_offers(*names: str) -> bool:
    """Whether this torch has these operators of oneDNN. They are not public, so some torch may be without."""
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@cache
def onednn_multiplies_bfloat16() -> bool:
    """Whether oneDNN has kernels for bfloat16 here (AVX-512 and better)."""
    return onednn_offers("_is_mkldnn_bf16_supported") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
