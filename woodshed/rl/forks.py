"""Choice of the state from which a finished rollout is continued several times (``rl.forks``).

A group then consists of roots and their forks: for each root, a tree of depth one. Where a root is forked follows from
its stored record alone, so a restarted controller finds the same forks under the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from woodshed.record.settings import Settings
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.failures import INFRA
from woodshed.rollout.forking import ForkError, ForkPoint, failed_tests, fork_point


class ForkSettings(Settings):
    """Continuations from a state in the middle of a rollout. Built-in agent only."""

    count: int = Field(default=0, ge=0)
    """Number of further continuations (forks), K, sampled from one state of each rollout; 0 turns forks off."""
    at: Literal["failed_test", "random_failed_test"] = "failed_test"
    """State to fork from: after the first failed test run that follows an accepted edit, or after a random one of these
    test runs; never after the last turn. Rollouts without such a test run are not forked."""


def place(root: Trajectory, settings: ForkSettings) -> int | None:
    """Return the number of replies of ``root`` after which it is forked; None if it is not forked."""
    places = failed_tests(root)
    if not places:
        return None
    return places[0] if settings.at == "failed_test" else random.Random(f"fork-{root.id}").choice(places)


def planned(root: Trajectory, settings: ForkSettings) -> dict[str, ForkPoint]:
    """Return the fork points of ``root`` by fork id; none if it is a fork or an infrastructure error ended it."""
    if not settings.count or root.fork is not None or root.status == INFRA:
        return {}
    replies = place(root, settings)
    if replies is None:
        return {}
    try:
        point = fork_point(root, replies)
    except ForkError:  # for example, the gateway recorded a context in several segments
        return {}
    return {f"{root.id}.f{number}": point for number in range(settings.count)}


def roots(group: Iterable[Trajectory]) -> list[Trajectory]:
    """Return the trajectories that are not forks."""
    return [t for t in group if t.fork is None]
