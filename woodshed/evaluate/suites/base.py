"""Suites: named collections of tasks, loaded or built for one evaluation."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

Progress = Callable[[int, int, str], None]


class SuiteError(Exception):
    """A suite cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class SuiteContext:
    """Resources for loading a suite. ``out``: folder for tasks that have to be built, kept for the next start.

    ``split``: tasks of a folder to use, ``heldout``, ``train``, ... or ``all``. ``catalogue``: path of another
    catalogue with the test runner, or ''. ``parallel``: number of boxes at the same time.
    """

    backend: Backend
    layers: LayerStore
    out: Path
    progress: Progress
    split: str = "heldout"
    catalogue: str = ""
    parallel: int = 2


LoadSuite = Callable[[str, SuiteContext], Awaitable[list[Task]]]
"""Returns the tasks of a source such as ``quixbugs:PATH``, the same in every call. Raises SuiteError."""


@dataclass(frozen=True)
class Suite:
    """Loaded tasks. ``name`` is short and unique in an evaluation; ``source`` is what the user wrote."""

    name: str
    source: str
    tasks: tuple[Task, ...]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each task by its name."""
        return {task.name: task.digest for task in self.tasks}


def text_fields(line: str, names: Sequence[str], where: str, error: type[Exception]) -> dict[str, str]:
    """Return the fields ``names``, all texts, of a JSON object in one line. Raises ``error``, whose message begins with
    ``where``."""
    try:
        found: Any = json.loads(line)
    except ValueError as problem:
        raise error(f"{where}: not JSON ({problem})") from None
    missing = [name for name in names if not isinstance(found, dict) or not isinstance(found.get(name), str)]
    if missing:
        raise error(f"{where}: {missing[0]} is missing or no text; expected {', '.join(names)}")
    return {name: found[name] for name in names}
