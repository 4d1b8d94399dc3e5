"""The monitors: the built-in ones by name, others by reference."""

from __future__ import annotations

import difflib
import inspect as introspection
import logging
from collections.abc import Iterable
from dataclasses import replace

from woodshed.record.fault import Fault, is_shortage
from woodshed.record.settings import is_reference, load_reference

from .base import Finding, Monitor, MonitoredEpisode
from .conduct import call_sabotage, comment_stuffing, question_asking, terminal_only
from .retrieval import network_use, solution_retrieved
from .special_casing import special_casing
from .tampering import test_tampering

log = logging.getLogger(__name__)

MONITORS: dict[str, Monitor] = {
    monitor.__name__: monitor
    for monitor in (
        solution_retrieved,
        test_tampering,
        special_casing,
        network_use,
        call_sabotage,
        question_asking,
        terminal_only,
        comment_stuffing,
    )
}

JUDGE = "judge"
"""Name of the findings of the judge, which is not a function but a model behind HTTP (``monitors.judge``)."""

NAMES = (*MONITORS, JUDGE)
"""The built-in names that a finding can have."""


def load_monitor(name: str) -> Monitor:
    """Return the monitor with a name, or with a reference ``"my_module:my_function"``. Raises ValueError."""
    if name in MONITORS:
        return MONITORS[name]
    where = f"rl.monitors.{name}"
    if not is_reference(name):
        near = difflib.get_close_matches(name, MONITORS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(MONITORS)}, or 'module:function'"
        raise ValueError(f"{where}: unknown monitor; {hint}")
    monitor = load_reference(name, where)
    if not callable(monitor):
        raise ValueError(f"{where}: it is no function of a MonitoredEpisode")
    try:
        introspection.signature(monitor).bind(None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: it cannot be called with a MonitoredEpisode alone: {error}") from None
    return monitor


def inspect(episode: MonitoredEpisode, names: Iterable[str] = tuple(MONITORS)) -> list[Finding]:
    """Return the findings of the named monitors, in the order of ``names``. A monitor with a bug finds nothing.

    A finding has the name under which the recipe lists its monitor, whatever name the monitor gave it. Raises only
    Fault, and OSError if the machine is out of a resource.
    """
    findings: list[Finding] = []
    for name in names:
        monitor = load_monitor(name)
        try:
            findings += [replace(_checked(finding), monitor=name) for finding in monitor(episode)]
        except Exception as error:  # a bug in a monitor must not become a way for a policy to have its episode masked
            if isinstance(error, Fault) or (isinstance(error, OSError) and is_shortage(error)):
                raise
            log.exception("monitor %s failed on an episode of %s", name, episode.task.name)
    return findings


def _checked(finding: object) -> Finding:
    """Return the finding. Raises TypeError if it is none, or cannot be stored as one."""
    if not isinstance(finding, Finding):
        raise TypeError(f"a monitor must yield findings, and yielded {finding!r:.80}")
    if not isinstance(finding.turn, int) or not isinstance(finding.evidence, str):
        raise TypeError(f"turn must be a number and evidence a text: {finding!r:.200}")
    return finding
