"""Which harder tasks a run makes: by the pass rates of the last steps, and by nothing else.

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
    """Harder tasks made for one step at most, synthetic ones only: several bugs of kinds that became easy in one
    repository. They are dispatched before all others. 0 makes none."""
    easy: float = Field(default=0.9, gt=0, le=1)
    """A kind of bug is easy where at least this share of the rollouts of the last ``window`` steps solved its tasks."""
    window: int = Field(default=8, ge=1)
    """Steps whose groups count, those that dynamic sampling replaced included."""
    least: int = Field(default=4, ge=1)
    """Groups of a kind in the window below which nothing is said about it."""
    max_bugs: int = Field(default=3, ge=2, le=8)
    """Bugs in the hardest tasks. Tasks with one more bug are made only of kinds that are easy with one less."""
    check: int = Field(default=0, ge=0)
    """Tasks checked for one step at most, of groups that no rollout solved: the reference solution is graded again.
    Where it fails, the group is dropped and the task named. 0 checks none."""

    def check_against(self, groups_per_step: int) -> None:
        """Raise ValueError where a batch cannot hold what is asked for."""
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
    """A finished group: kinds of the bugs of its task, and how many of its graded rollouts solved it."""

    bugs: tuple[str, ...]
    solved: int
    graded: int


@dataclass
class _Tally:
    groups: int = 0
    solved: int = 0
    graded: int = 0


def kinds_to_make(groups: Iterable[SeenGroup], settings: GrowthSettings, seed: int, step: int) -> list[tuple[str, ...]]:
    """The bugs of each task to make after ``step``, given the groups of the window.

    A kind goes into tasks with one bug more than the most with which it is easy. It waits where such tasks are known
    and nobody solved one, until these have left the window.
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
    """Kind -> number of bugs of the tasks that are made with it next."""
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
