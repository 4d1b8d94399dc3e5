"""Settings of the weight chain."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.record.settings import Settings


class WeightSettings(Settings):
    """How versions are written."""

    anchor_every: int = Field(default=25, ge=1)
    """A version whose number is a multiple of this also carries the full weights, so that a newcomer or a straggler
    need not replay the whole chain. Fireworks' published example uses 25."""

    keep_anchors: int = Field(default=2, ge=0)
    """Versions older than this many anchors are deleted after each new anchor; 0 keeps everything."""

    level: int = Field(default=1, ge=1, le=19)
    """zstd level. Higher levels cost trainer time and gain little: what is left after the XOR is mostly noise."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What engines get. The trainer keeps its own precision; bfloat16 halves an anchor and makes deltas far smaller,
    and is what engines on a GPU sample with."""

    fsync: bool = True
    """Flush each version to the disk before it becomes visible: survives a power cut, not only a killed process."""
