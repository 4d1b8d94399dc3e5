"""The language-specific parts of an install (``Kit``), and goals: commands that must work once it is installed."""

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
    from .run import Builder
    from .space import Boxes, Ground


INDEX_PORT = 4873
"""Port of the index on 127.0.0.1 of a box."""

TOOLS = "/opt/install"
"""Folder of a box, in a layer, with the installer."""


@dataclass(frozen=True)
class Archive:
    """A published npm package as the registry served it. ``manifest``: the registry's entry for this version;
    ``latest``: whether it has the tag ``latest``. These two are not kept in a lock."""

    package: str
    version: str
    integrity: str
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    latest: bool = field(default=False, repr=False, compare=False)


Served = Wheel | Archive
"""A file that an index served."""

Pinned = Wheel | Module
"""An installed package, from which a layer can be made."""


class Index(Protocol):
    """The index of one box. ``served``: file name -> file; ``problems``: what could not be fetched, and why."""

    port: int
    problems: list[str]

    @property
    def served(self) -> Mapping[str, Served]: ...


@dataclass(frozen=True)
class Left:
    """Changes that a recipe left behind: ``installed`` packages, files ``added`` to the repository, and forbidden ones
    (``problems``)."""

    installed: tuple[Pinned, ...]
    added: Mapping[str, bytes]
    problems: tuple[str, ...]


class Kit(Protocol):
    """The parts of an install that depend on the language. ``box``: the description of a box in prompts; ``runner``:
    name of the program that counts tests; ``absent``: the note about a requirement that was left out."""

    box: str
    runner: str
    absent: str

    def index(self, ground: Ground, only: Sequence[Served] | None) -> AbstractContextManager[Index]:
        """The index server of a box; with ``only``, it serves just those files, from the cache."""
        ...

    def base_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        """Names of the layers below the repository, during the install and in its tasks."""
        ...

    def tool_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        """Names of the layers with the installer."""
        ...

    def package_layers(self, ground: Ground, installed: Sequence[Pinned], layers: LayerStore) -> list[str]: ...

    def environment(self, ground: Ground) -> dict[str, str]: ...

    def tool_environment(self, ground: Ground, index: str) -> dict[str, str]:
        """``environment`` plus the variables of the installer; ``index``: root URL of its index."""
        ...

    async def compiled(self, ground: Ground, boxes: Boxes) -> tuple[Ground, str]:
        """Return (``ground`` with compiled extension modules of the project, why they were not compiled or empty)."""
        ...

    async def left(self, box: Sandbox, ground: Ground, served: Iterable[Served]) -> Left:
        """Collect what a recipe left in its box. Raises OSError if the box cannot be read back."""
        ...

    def plugins(self, installed: Sequence[Pinned], cache: Path | None) -> tuple[str, ...]:
        """Plugins of the test runner among the installed packages, by the names under which it loads them."""
        ...

    def goals(self, ground: Ground) -> list[Goal]:
        """Goals found by rules."""
        ...

    def builder(self, needs: Sequence[str]) -> Builder:
        """Return a builder that works by rules; ``needs``: from the command line. Raises PackageError for bad ones."""
        ...


SHARE = 0.8
"""Default share of the tests run that must pass in goals found by rules, as RepoLaunch and SWE-smith require of an
environment."""

PROPOSED, DRAWN, TRIES = 10, 3, 5
"""Number of goals that a setter proposes, of those drawn for the builder, and of its tries (Composer 2 report)."""


def parse_goals(data: bytes) -> list[Goal]:
    """Parse exactly ``PROPOSED`` goals from JSON. Raises ValueError, which says what to correct."""
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
    """Draw ``DRAWN`` goals; deterministic for a seed.

    The first one runs tests if any goal does, because an environment without tests yields no tasks. Raises PackageError
    if there are fewer than ``DRAWN``.
    """
    if len(goals) < DRAWN:
        raise PackageError(
            f"only {len(goals)} goals were found, but {DRAWN} are needed: give the path of its tests with --tests"
        )
    rng = random.Random(seed)
    suites = [goal for goal in goals if goal.passing_share > 0]
    first = [rng.choice(suites)] if suites else []
    rest = [goal for goal in goals if goal not in first]
    return first + rng.sample(rest, DRAWN - len(first))
