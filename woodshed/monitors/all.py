"""The monitors by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from woodshed.record.fault import Fault

from .base import Finding, Monitor, MonitoredEpisode
from .conduct import call_sabotage, comment_stuffing, question_asking, terminal_only
from .retrieval import network_use, solution_retrieved
from .special_casing import special_casing
from .tampering import test_tampering

log = logging.getLogger(__name__)

MONITORS: dict[str, Monitor] = {
    monitor.__name__: monitor
    for monitor in (
        solution_retrieved, test_tampering, special_casing, network_use, call_sabotage, question_asking, terminal_only,
        comment_stuffing,
    )
}  # fmt: skip

NAMES = (*MONITORS, "judge")
"""All that can find something; the judge is asked over HTTP and by itself."""


def inspect(episode: MonitoredEpisode, names: Iterable[str] = tuple(MONITORS)) -> list[Finding]:
    """What the monitors of these names find, in the order of the monitors. A monitor that fails finds nothing."""
    findings: list[Finding] = []
    for name in names:
        try:
            findings += MONITORS[name](episode)
        except (Fault, OSError):
            raise
        except Exception:  # a bug of ours that a policy has found is no way out of its episode
            log.exception("monitor %s failed on an episode of %s", name, episode.task.name)
    return findings
