"""The tools of Node projects, for ``packages/build.py``."""

from __future__ import annotations

import random

from woodshed.tasks.generators.packages.prepare import CoveredFunction
from woodshed.tasks.generators.packages.toolchain import Toolchain
from woodshed.tasks.languages.python import pick

from .functions import delete_body, function_named
from .modules import module_layers
from .mutations import mutations
from .prepare import prepare
from .trial import NodeTrial
from .workspace import workspace_of


def change(kind: str, function: CoveredFunction, source: str, rng: random.Random) -> tuple[str, str, int] | None:
    """A ``Change`` of JavaScript."""
    found = function_named(source.encode(), function.name)
    if kind == "delete_function":
        if function.statements < 3:
            return None
        return kind, delete_body(source.encode(), found).decode(), 0
    options = mutations(source.encode(), found)
    if not options:
        return None
    mutation = pick(rng, options)
    return mutation.kind, mutation.source, mutation.line


NODE = Toolchain(
    module_layers, workspace_of, prepare, NodeTrial, change, frozenset(["mutate", "delete_function", "combine"])
)
