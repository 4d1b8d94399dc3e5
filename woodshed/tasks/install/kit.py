"""What differs between languages when a repository is set up: its index, the tools of its box, what is installed.

Goals: commands that work once a repository is installed, each with what its output must look like.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from woodshed.grading.install.goal import Goal, goal_of
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Sandbox
from woodshed.tasks.packages.catalogue import Module, Wheel
from woodshed.tasks.packages.index import PackageError

if TYPE_CHECKING:
    from woodshed.grading.install.goal import Goal

    from .run import Builder
    from .space import Boxes, Ground


INDEX_PORT = 4873
"""Where a box finds its index, on its own 127.0.0.1."""

TOOLS = "/opt/install"
"""Where a box has what installs, in a layer."""


@dataclass(frozen=True)
class Archive:
    """A published npm package as a registry served it: ``manifest`` is what it said of this version, ``latest`` whether
    that was the one to take where nothing is asked for. Only the rest is kept in a lock."""

    package: str
    version: str
    integrity: str
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    latest: bool = field(default=False, repr=False, compare=False)


Served = Wheel | Archive
"""A file that an index handed out."""

Pinned = Wheel | Module
"""A package that is installed at the end, as a layer can be made of it."""


class Index(Protocol):
    """The index of one box. ``served`` by file name; ``problems``: what could not be had and why."""

    port: int
    problems: list[str]

    @property
    def served(self) -> Mapping[str, Served]: ...


@dataclass(frozen=True)
class Left:
    """What a recipe left behind: locked packages, files that were not in the repository, what it may not have done."""

    installed: tuple[Pinned, ...]
    added: Mapping[str, bytes]
    problems: tuple[str, ...]


class Kit(Protocol):
    """One language. ``box``: what roles are told of their box; ``runner``: what counts tests; ``absent``: what is said
    of a requirement that was left out."""

    box: str
    runner: str
    absent: str

    def index(self, ground: Ground, only: Sequence[Served] | None) -> AbstractContextManager[Index]:
        """With ``only``, those files are served and no other, from the cache alone."""
        ...

    def base_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        """Below every repository, whether it is being installed or not."""
        ...

    def tool_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        """What installs."""
        ...

    def package_layers(self, ground: Ground, installed: Sequence[Pinned], layers: LayerStore) -> list[str]: ...

    def environment(self, ground: Ground) -> dict[str, str]: ...

    def tool_environment(self, ground: Ground, index: str) -> dict[str, str]:
        """``environment`` and that of what installs, which asks ``index`` (the URL of its root)."""
        ...

    async def compiled(self, ground: Ground, boxes: Boxes) -> tuple[Ground, str]:
        """``ground`` with what has to be compiled of the project itself, and why it was not, where it was not."""
        ...

    async def left(self, box: Sandbox, ground: Ground, served: Iterable[Served]) -> Left:
        """Look at a box in which a recipe ran. Raises OSError where it cannot be read back."""
        ...

    def plugins(self, installed: Sequence[Pinned], cache: Path | None) -> tuple[str, ...]:
        """Plugins of the test runner among them, as it is told to load them."""
        ...

    def goals(self, ground: Ground) -> list[Goal]:
        """By rule."""
        ...

    def builder(self, needs: Sequence[str]) -> Builder:
        """By rule; ``needs`` are a person's. Raises PackageError for one that is not written properly."""
        ...


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
