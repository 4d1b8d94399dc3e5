"""Taking a group of functions out of a package so that it still imports: what is called from outside keeps its
signature and docstring, and private helpers that nothing names any more go entirely."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from woodshed.tasks.languages.python import delete_bodies, remove_functions

from .groups import is_private
from .prepare import CoveredFunction

_WORD = re.compile(r"\w+")


def delete_group(functions: Sequence[CoveredFunction], workspace: Mapping[str, bytes]) -> dict[str, bytes]:
    """The changed modules of ``workspace`` (path -> content). Raises SyntaxError."""
    names: dict[str, set[str]] = defaultdict(set)
    for function in functions:
        names[function.module].add(function.name)
    changed = {module: delete_bodies(workspace[module].decode(), found) for module, found in names.items()}
    unused = _unused(functions, workspace, changed)
    made = {m: remove_functions(text, unused & names[m]) if unused & names[m] else text for m, text in changed.items()}
    return {module: text.encode() for module, text in made.items() if text.encode() != workspace[module]}


def _unused(
    functions: Sequence[CoveredFunction], workspace: Mapping[str, bytes], changed: Mapping[str, str]
) -> set[str]:
    """Qualified names of private functions that occur nowhere but in their own definition.

    Words are counted, in comments and strings too: what is named somehow stays.
    """
    wanted = {f.name for f in functions if is_private(f.name)}
    last = {name.rpartition(".")[2] for name in wanted}
    if not last:
        return set()
    counts: Counter[str] = Counter()
    for name, data in workspace.items():
        if name.endswith((".py", ".pyi")):
            text = changed[name] if name in changed else data.decode("utf-8", "replace")
            counts.update(word for word in _WORD.findall(text) if word in last)
    return {name for name in wanted if counts[name.rpartition(".")[2]] == 1}
