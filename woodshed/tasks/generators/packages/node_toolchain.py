"""The toolchain of Node projects."""

from __future__ import annotations

import random

from woodshed.tasks.languages.node.functions import delete_body, function_named
from woodshed.tasks.languages.node.modules import module_layers
from woodshed.tasks.languages.node.mutations import mutations
from woodshed.tasks.languages.node.prepare import prepare
from woodshed.tasks.languages.node.workspace import workspace_of
from woodshed.tasks.languages.python import pick
from woodshed.tasks.packages.prepare import CoveredFunction

from .node_trial import NodeTrial
from .toolchain import Toolchain


def change(kind: str, function: CoveredFunction, source: str, rng: random.Random) -> tuple[str, str, int] | None:
    """Change JavaScript code; see ``Change``."""
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
    layers=module_layers,
    workspace=workspace_of,
    prepare=prepare,
    trial=NodeTrial,
    change=change,
    kinds=frozenset(["mutate", "delete_function", "combine"]),
)
