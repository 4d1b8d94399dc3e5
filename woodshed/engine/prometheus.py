"""Numbers as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4"


def metric(name: str, kind: str, about: str, value: float) -> list[str]:
    """Lines of one metric."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]


def engine_lines(stats: Mapping[str, Any]) -> list[str]:
    """The numbers among an engine's ``stats()``."""
    lines: list[str] = []
    for key, value in stats.items():
        if isinstance(value, (int, float)):
            lines += metric(f"woodshed_engine_{key}", "gauge", f"Engine: {key.replace('_', ' ')}", float(value))
    return lines
