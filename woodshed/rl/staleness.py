"""How far rollouts may run ahead of the trainer (AReaL, arXiv:2505.24298, section 5.1, and a sweep by token age)."""

from __future__ import annotations

from collections.abc import Iterable

from woodshed.record.trajectory import Trajectory


def may_dispatch(used: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Whether one more group keeps every group within ``max_staleness`` versions of the step that trains it.

    ``used`` groups were dispatched for training so far and ``version`` steps were published: the next group is trained
    at version ``used // groups_per_step``, which may exceed ``version`` by at most ``max_staleness``.
    """
    return used // groups_per_step - version <= max_staleness


def token_age(trajectories: Iterable[Trajectory], version: int) -> int:
    """Versions between the oldest sampled token of a group and ``version``; 0 where nothing was sampled."""
    oldest = [low for low, _ in (t.version_range() for t in trajectories) if low >= 0]
    return max(0, version - min(oldest)) if oldest else 0
