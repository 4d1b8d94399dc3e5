"""Goals: commands that work once a repository is installed, each with what its output must look like."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from woodshed.grading.install.goal import Goal, goal_of
from woodshed.tasks.generators.packages.index import PackageError

SHARE = 0.8
"""By rule, where nothing else is said: of the tests that ran, this share has to pass (as RepoLaunch and SWE-smith ask
of an environment)."""

PROPOSED, DRAWN, TRIES = 10, 3, 5
"""Goals that a setter proposes, those that a builder is given, and how often it may try (Composer 2 report)."""


def parse_goals(data: bytes) -> list[Goal]:
    """The goals of a JSON file, exactly ``PROPOSED`` of them. Raises ValueError that says what to correct."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {str(error)[:200]}") from None
    if not isinstance(table, list) or len(table) != PROPOSED:
        have = len(table) if isinstance(table, list) else type(table).__name__
        raise ValueError(f"must be a list of exactly {PROPOSED} goals, got {have}")
    goals = [goal_of(entry, f"goal {number}") for number, entry in enumerate(table, 1)]
    commands = [goal.command.strip() for goal in goals]
    if repeated := [c for c in commands if commands.count(c) > 1]:
        raise ValueError(f"two goals have the command {repeated[0]!r}")
    return goals


def draw(goals: Sequence[Goal], seed: str) -> list[Goal]:
    """``DRAWN`` of the goals, the same for the same seed.

    The first runs tests, where one of the goals does: an environment without tests is of no use here. Raises
    PackageError for fewer than ``DRAWN``.
    """
    if len(goals) < DRAWN:
        raise PackageError(f"only {len(goals)} goals were found, and {DRAWN} are needed: name its tests with --tests")
    rng = random.Random(seed)
    suites = [goal for goal in goals if goal.passing_share > 0]
    first = [rng.choice(suites)] if suites else []
    rest = [goal for goal in goals if goal not in first]
    return first + rng.sample(rest, DRAWN - len(first))
