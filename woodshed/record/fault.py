"""Failures that carry where they came from. The class decides it, so no failure becomes one of another source."""

from __future__ import annotations

from typing import ClassVar, Literal

FaultSource = Literal["box", "host", "endpoint"]


class Fault(Exception):
    """``source``: ``box`` counts against whoever ran in it; ``host`` and ``endpoint`` are tried again, then masked."""

    source: ClassVar[FaultSource]
