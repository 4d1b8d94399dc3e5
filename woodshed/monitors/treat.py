"""What a recipe makes of findings: which monitors run, what a flagged rollout is paid, whether it is trained on."""

from __future__ import annotations

from collections.abc import Mapping

from woodshed.grading.settings import MonitorSettings
from woodshed.monitors.judge.verdict import Ruling
from woodshed.record.trajectory import Trajectory

from .all import MONITORS, inspect
from .base import MonitoredEpisode


def watch(
    trajectory: Trajectory,
    episode: MonitoredEpisode,
    settings: MonitorSettings,
    *,
    training: bool,
    ruling: Ruling | None = None,
) -> None:
    """Put findings on the trajectory, and the label ``flagged``, which the store's index has.

    ``ruling``: a judge's, where one was asked; what came of that is the label ``judge``. In training a monitor whose
    treatment is ``fail`` takes back everything that was paid, so that penalties alone are left.
    """
    names = [name for name in settings.treated("flag", "quarantine", "fail") if name in MONITORS]
    findings = inspect(episode, names)
    if ruling is not None:
        trajectory.labels["judge"] = ruling.state
        findings += ruling.findings()
    trajectory.findings = [finding.row() for finding in findings]
    if trajectory.findings:
        trajectory.labels["flagged"] = ",".join(sorted(trajectory.flagged))
    if training:
        trajectory.rewards = {**trajectory.rewards, **_taken_back(trajectory, settings)}


def quarantined(trajectory: Trajectory, settings: MonitorSettings) -> bool:
    """Whether it is left out of training."""
    return not trajectory.flagged.isdisjoint(settings.treated("quarantine"))


def count(trajectories: list[Trajectory]) -> dict[str, int]:
    """Episodes that each monitor flagged."""
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        for name in sorted(trajectory.flagged):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _taken_back(trajectory: Trajectory, settings: MonitorSettings) -> Mapping[str, float]:
    failing = [name for name in settings.treated("fail") if name in trajectory.flagged]
    paid = sum(value for value in trajectory.rewards.values() if value > 0)
    return {f"monitor_{failing[0]}": -paid} if failing and paid > 0 else {}
