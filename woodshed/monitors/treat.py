"""How a recipe treats findings: which monitors run, how they change the reward, which rollouts are left out."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from woodshed.grading.settings import MonitorSettings
from woodshed.record.trajectory import Trajectory

from .all import JUDGE, inspect
from .base import MonitoredEpisode

if TYPE_CHECKING:  # the judge imports httpx; loading a recipe, which checks its monitors, should not
    from woodshed.monitors.judge.verdict import Ruling


def watch(
    trajectory: Trajectory,
    episode: MonitoredEpisode,
    settings: MonitorSettings,
    *,
    training: bool,
    ruling: Ruling | None = None,
) -> Trajectory:
    """Run the monitors; return the trajectory with their findings and the label ``flagged``, which the store indexes.

    ``ruling``: the judge's, if one was asked; its state becomes the label ``judge``. In training, a finding of a
    monitor whose treatment is ``fail`` takes back all positive reward, so that only penalties remain.
    """
    names = [name for name in settings.treated("flag", "quarantine", "fail") if name != JUDGE]
    findings = inspect(episode, names)
    labels = dict(trajectory.labels)
    if ruling is not None:
        labels["judge"] = ruling.state
        findings += ruling.findings()
    flagged = {finding.monitor for finding in findings}
    if flagged:
        labels["flagged"] = ",".join(sorted(flagged))
    rewards = dict(trajectory.rewards)
    if training:
        rewards |= _taken_back(rewards, flagged, settings)
    return replace(trajectory, findings=[finding.row() for finding in findings], labels=labels, rewards=rewards)


def quarantined(trajectory: Trajectory, settings: MonitorSettings) -> bool:
    """Return whether the trajectory is left out of training."""
    return not trajectory.flagged.isdisjoint(settings.treated("quarantine"))


def count(trajectories: list[Trajectory]) -> dict[str, int]:
    """Number of episodes that each monitor flagged."""
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        for name in sorted(trajectory.flagged):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _taken_back(rewards: Mapping[str, float], flagged: Set[str], settings: MonitorSettings) -> dict[str, float]:
    """Return the term that cancels all positive reward, named after the first failing monitor; empty if none failed."""
    failing = [name for name in settings.treated("fail") if name in flagged]
    paid = sum(value for value in rewards.values() if value > 0)
    return {f"monitor_{failing[0]}": -paid} if failing and paid > 0 else {}
