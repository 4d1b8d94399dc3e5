"""The monitors by name."""

from __future__ import annotations

from collections.abc import Iterable

from .base import Episode, Finding, Monitor
from .conduct import call_sabotage, comment_stuffing, question_asking, terminal_only
from .retrieval import network_use, solution_retrieved
from .special_casing import special_casing
from .tampering import test_tampering

MONITORS: dict[str, Monitor] = {
    monitor.__name__: monitor
    for monitor in (
        solution_retrieved, test_tampering, special_casing, network_use, call_sabotage, question_asking, terminal_only,
        comment_stuffing,
    )
}  # fmt: skip

NAMES = (*MONITORS, "judge")
"""All that can find something; the judge is asked over HTTP and by itself."""


def inspect(episode: Episode, names: Iterable[str] = tuple(MONITORS)) -> list[Finding]:
    """What the monitors of these names find, in the order of the monitors."""
    return [finding for name in names for finding in MONITORS[name](episode)]
