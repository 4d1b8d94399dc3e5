"""Choice of the harder tasks to make, from the pass rates of the last steps.

A choice is a function of finished groups, settings, seed and step, so that a restarted controller chooses the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from woodshed.record.settings import Settings


class GrowthSettings(Settings):
    """Tasks that are made and checked while RL runs; off by default."""

    make: int = Field(default=0, ge=0)
    """Maximum number of harder tasks made per step, synthetic ones only: several bugs in one repository, of kinds that
    became easy. They are dispatched before all others. 0 makes none."""
    easy: float = Field(default=0.9, gt=0, le=1)
    """A kind of bug is easy if at least this share of the rollouts of the last ``window`` steps solved its tasks."""
    window: int = Field(default=8, ge=1)
    """Number of steps whose groups count, including groups that dynamic sampling replaced."""
    least: int = Field(default=4, ge=1)
    """Minimum number of groups of a kind in the window; a kind with fewer is not judged."""
    max_bugs: int = Field(default=3, ge=2, le=8)
    """Number of bugs in the hardest tasks. Tasks with n bugs are made only from kinds that are easy with n - 1."""
    check: int = Field(default=0, ge=0)
    """Maximum number of tasks checked per step, of groups that no rollout solved: the reference solution is graded
    again. If it fails, the group is dropped and the task reported. 0 checks none."""

    def check_against(self, groups_per_step: int) -> None:
        """Raise ValueError if a batch cannot hold ``make`` tasks or the window cannot hold ``least`` groups."""
        if self.make > groups_per_step:
            raise ValueError(
                f"growth.make is {self.make} and groups_per_step is {groups_per_step}: tasks that are made go first, "
                "so nothing else would be trained; lower rl.growth.make"
            )
        if self.make and self.least > self.window * groups_per_step:
            raise ValueError(
                f"growth.least is {self.least}, and the growth.window of {self.window} steps has only "
                f"{self.window * groups_per_step} groups: lower rl.growth.least or raise rl.growth.window"
            )


@dataclass(frozen=True)
class SeenGroup:
    """A finished group: the kinds of its task's bugs, and how many of its graded rollouts solved the task."""

    bugs: tuple[str, ...]
    solved: int
    graded: int


@dataclass
class _Tally:
    groups: int = 0
    solved: int = 0
    graded: int = 0


def kinds_to_make(groups: Iterable[SeenGroup], settings: GrowthSettings, seed: int, step: int) -> list[tuple[str, ...]]:
    """Return the bug kinds of each task to make after ``step``, given the groups of the window.

    A kind goes into tasks with one bug more than the largest number of bugs with which it is easy. If no rollout solved
    such tasks so far, the kind waits until these tasks have left the window.
    """
    ready = _ready(groups, settings)
    rng = random.Random(f"growth-{seed}-{step}")
    found = []
    for _ in range(settings.make if ready else 0):
        kind = rng.choice(sorted(ready))
        others = sorted(other for other in ready if ready[other] == ready[kind])
        found.append(tuple(sorted([kind, *rng.choices(others, k=ready[kind] - 1)])))
    return found


def _ready(groups: Iterable[SeenGroup], settings: GrowthSettings) -> dict[str, int]:
    """Return, by kind, the number of bugs of the tasks to make with it next."""
    tallies: dict[tuple[str, int], _Tally] = {}
    for group in groups:
        for kind in set(group.bugs):
            tally = tallies.setdefault((kind, len(group.bugs)), _Tally())
            tally.groups += 1
            tally.solved += group.solved
            tally.graded += group.graded
    known = {place: tally for place, tally in tallies.items() if tally.groups >= settings.least and tally.graded}
    easy: dict[str, int] = {}
    for (kind, bugs), tally in known.items():
        if tally.solved >= settings.easy * tally.graded:
            easy[kind] = max(bugs, easy.get(kind, 0))
    ready = {}
    for kind, bugs in easy.items():
        harder = known.get((kind, bugs + 1))
        if bugs < settings.max_bugs and (harder is None or harder.solved):
            ready[kind] = bugs + 1
    return ready
