"""The language-specific steps from a pinned package to its tasks; the rest of the pipeline is the same for all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

from woodshed.tasks.generators.changes.candidates import Change, change_python
from woodshed.tasks.packages.dependencies import dependency_layers
from woodshed.tasks.packages.prepare import Suite, prepare
from woodshed.tasks.packages.workspace import workspace_of
from woodshed.tasks.settings import Kind

from .trial import Trial


@dataclass(frozen=True)
class Toolchain:
    """``layers``: makes the layers of the dependencies. ``workspace``: selects the files that an agent may see.
    ``prepare``: runs and traces the suite. ``trial``: tries candidates. ``change``: makes single changes. ``kinds``:
    the kinds of tasks that can be made."""

    layers: Callable[..., tuple[str, ...]]
    workspace: Callable[..., dict[str, bytes]]
    prepare: Callable[..., Awaitable[Suite]]
    trial: type[Trial]
    change: Change
    kinds: frozenset[str]


PYTHON = Toolchain(
    layers=dependency_layers,
    workspace=workspace_of,
    prepare=prepare,
    trial=Trial,
    change=change_python,
    kinds=frozenset(get_args(Kind)),
)
