"""Measurements of the rollouts of a step, and the history of steps: rollout and trainer metrics joined by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from woodshed.record.trajectory import ToolEvent, Trajectory
from woodshed.record.visible import visible
from woodshed.rl.forks import roots
from woodshed.rollout.failures import INFRA, loss_reason

MOST_TOOLS = 12
LONGEST_NAME = 60
"""Number of characters of a tool's name in the metrics."""
Step = Mapping[str, Any]
"""Metrics of one step. Those of the trainer are under the key ``trainer``, absent until the step is trained."""


def measure(groups: Sequence[Sequence[Trajectory]], step: int) -> dict[str, Any]:
    """Return statistics of the rollouts of the batch of ``step``.

    Rollouts that infrastructure errors ended are left out. Figures about whole episodes leave out forks, which repeat a
    part of their root.

    ``tools``: share of each tool among the calls (``_tool_mix``). ``edit_rate``: share of rollouts that edited a file
    with a tool for it, or submitted changed code (of an agent program, edits are not counted).
    ``limit_share``: share that ended at a limit. ``summaries``: contexts that the policy summarised, per rollout.
    ``staleness_histogram``: share of the sampled tokens by staleness, in versions before the weights that this step
    trains. ``mixed_version_share``: share of the segments with sampled tokens that several versions sampled.
    ``retried_share``: share of rollouts that needed several attempts.
    """
    ended = [t for group in groups for t in group if t.status != INFRA]
    whole = roots(ended)
    lags: Counter[int] = Counter()
    segments = mixed = 0
    for segment in (s for t in ended for s in t.segments):
        versions = segment.versions[segment.sampled]
        if not len(versions):
            continue
        segments += 1
        mixed += bool(versions.min() != versions.max())
        values, counts = np.unique(step - 1 - versions, return_counts=True)
        lags.update({int(lag): int(count) for lag, count in zip(values, counts)})
    return {
        "tools": _tool_mix(event for t in whole for event in t.events),
        "edit_rate": _share(t.effort.edits > 0 or bool(t.changed) for t in whole),
        "limit_share": _share(t.status in ("limit", "timeout") for t in whole),
        "retried_share": _share(t.attempts > 1 for t in ended),
        "summaries": float(np.mean([t.effort.summaries for t in whole])) if whole else 0.0,
        "segments_per_rollout": float(np.mean([len(t.segments) for t in whole])) if whole else 0.0,
        "staleness_histogram": {str(lag): count / lags.total() for lag, count in sorted(lags.items())},
        "mixed_version_share": mixed / segments if segments else 0.0,
    }


def infra_share(groups: Sequence[Sequence[Trajectory]]) -> float:
    """Return the share of the rollouts that infrastructure errors ended; abandoned forks are none of these.

    ``groups``: those of a batch and those that were dropped while it was filled, since a group that loses too many
    members never comes into a batch.
    """
    return _share(t.status == INFRA and loss_reason(t) == INFRA for group in groups for t in group)


def _tool_mix(events: Iterable[ToolEvent]) -> dict[str, float]:
    """Return the share of the calls by tool. A policy may invent any number of names, so calls of tools that do not
    exist count together as ``(unknown)``, and those beyond the ``MOST_TOOLS`` most common as ``(other)``. Names of an
    agent program are shortened and shown without characters that plots and event files cannot hold."""
    calls = Counter(
        "(unknown)" if event.error == "unknown_tool" else visible(event.name)[:LONGEST_NAME]
        for event in events
        if event.name
    )
    named = dict(calls.most_common(MOST_TOOLS))
    if rest := calls.total() - sum(named.values()):
        named["(other)"] = rest
    return {name: count / calls.total() for name, count in sorted(named.items())}


def _share(found: Any) -> float:
    values = list(found)
    return sum(values) / len(values) if values else 0.0


def join(rollouts: Sequence[Mapping[str, Any]], trainer: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Return the steps in order, joined from the lines of both metrics files.

    ``idle`` has the idle share of time since the previous step, where known: ``engine``, ``trainer``, and ``slots``
    (unused rollout slots).
    """
    trained = {int(line["step"]): line for line in trainer}
    steps: list[Step] = []
    before: Mapping[str, Any] = {}
    for line in sorted(rollouts, key=lambda line: int(line["step"])):
        joined = dict(line)
        idle: dict[str, float] = {}
        engine = line.get("engine") or {}
        if (share := _engine_idle(before, engine)) is not None:
            idle["engine"] = share
        before = engine or before
        if "slots_busy" in line:
            idle["slots"] = max(0.0, 1 - float(line["slots_busy"]))
        if (of_trainer := trained.get(int(line["step"]))) is not None:
            joined["trainer"] = of_trainer
            wall = of_trainer.get("idle_seconds", 0.0) + of_trainer.get("busy_seconds", 0.0)
            if wall > 0:
                idle["trainer"] = of_trainer.get("idle_seconds", 0.0) / wall
        joined["idle"] = idle
        steps.append(joined)
    return steps


def _engine_idle(before: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Return the idle share of the engine between two steps, from its counters (which restart at 0 with the engine);
    None if it reports none, or none since the step before: several batches may be formed between two reports."""
    if "busy_seconds" not in now or "uptime_seconds" not in now:
        return None
    uptime = now["uptime_seconds"] - before.get("uptime_seconds", 0.0)
    busy = now["busy_seconds"] - before.get("busy_seconds", 0.0)
    if uptime < 0 or busy < 0:
        uptime, busy = now["uptime_seconds"], now["busy_seconds"]
    return min(1.0, max(0.0, 1 - busy / uptime)) if uptime > 0 else None


def flat_share(step: Step) -> float:
    """Return the share of the groups sampled for a step in which all advantages are 0, including groups that dynamic
    sampling replaced."""
    replaced = int(step.get("flat_groups", 0))
    sampled = int(step.get("groups", 0)) + replaced
    return (int(step.get("zero_groups", 0)) + replaced) / sampled if sampled else 0.0


def effective_tools(step: Step) -> float | None:
    """Return exp of the entropy (nats) of the mix of tool calls: 1 for one tool, n for n equally used tools; None
    without calls."""
    shares = np.array([share for share in step.get("tools", {}).values() if share > 0], float)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else None
