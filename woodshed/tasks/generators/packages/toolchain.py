"""What differs between languages on the way from a pinned package to its candidates; the pipeline is the same."""

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
    """``layers``: dependencies below the workspace. ``workspace``: what an agent may see of the archive. ``prepare``:
    the suite. ``trial``: tries candidates. ``change``: makes single ones. ``kinds``: those that can be made."""

    layers: Callable[..., tuple[str, ...]]
    workspace: Callable[..., dict[str, bytes]]
    prepare: Callable[..., Awaitable[Suite]]
    trial: type[Trial]
    change: Change
    kinds: frozenset[str]


PYTHON = Toolchain(dependency_layers, workspace_of, prepare, Trial, change_python, frozenset(get_args(Kind)))
