"""Properties of this processor by which kernels are chosen, and memory in huge pages for weights and cache."""

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
    """Read the fields of the first processor in ``/proc/cpuinfo``; empty on systems other than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def made_by_amd() -> bool:
    """Return whether this is an AMD processor, for which MKL (torch's float32 products) does not use its best
    kernels."""
    return _described().get("vendor_id") == "AuthenticAMD"


def kind() -> tuple[str, ...]:
    """Return the fields that identify the processor that code is compiled for. Fields that change between starts, such
    as the clock, are left out."""
    return tuple(_described().get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping", "flags"))


@cache
def has_flags(*names: str) -> bool:
    """Return whether the processor has all of these flags, named as in ``/proc/cpuinfo``."""
    return set(names) <= set(_described().get("flags", "").split())


def onednn_offers(*names: str) -> bool:
    """Return whether this torch has these oneDNN operators. They are not public, so some versions may lack them."""
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@cache
def onednn_multiplies_bfloat16() -> bool:
    """Return whether oneDNN has kernels for bfloat16 here (AVX-512 and better)."""
    return onednn_offers("_is_mkldnn_bf16_supported") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


HUGE_PAGE = 2 << 20
"""Bytes of a huge page on x86, and on arm64 with pages of 4 KiB."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return zeros of shape ``shape``. On a CPU they lie in huge pages if Linux provides them on request (the default),
    because the lookup of small pages takes a considerable part of the time to read a large tensor. Memory is committed
    page by page, when it is first written. On a CPU, raises OSError if the address space is too small."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if (device is not None and device.type != "cpu") or size < HUGE_PAGE:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not Linux, or a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))  # the tensor keeps `memory` alive
