"""What this processor does well, where kernels are chosen by it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch


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
