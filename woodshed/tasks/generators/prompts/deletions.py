"""Instructions for deleted functions, classes and features, at every level."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from woodshed.record.python_source import parse_python
from woodshed.tasks.generators.changes.groups import is_private
from woodshed.tasks.languages.python import function_spans
from woodshed.tasks.packages.prepare import CoveredFunction

from .instruction import module_name, signature_of

_PRECISE = (
    "{what} not implemented. Implement {it}, with these signatures:\n\n{places}\n\n{files} must pass.\n",
    "Implement {what_short}. The interface is fixed:\n\n{places}\n\nTests: {files}\n",
)
_NORMAL = (
    "{what} not implemented: calls end in {error}. {purpose}Implement {it} as the {docs} and the "
    "rest of the package expect; {files} must pass.\n",
    "The implementation of {what_short} is missing. {purpose}Write it. Signatures and {docs} stay as they are, "
    "helpers are up to you. See {files}.\n",
)
_TERSE = (
    "{name} in {module} doesn't do anything yet. {purpose}Please finish it.\n",
    "getting {error} from {name} ({module}). {purpose}can you fill in what's missing there?\n",
    "{name} got lost in a refactoring of {module}. {purpose}Bring it back, callers rely on it.\n",
)
_MOST_SHOWN = 12


def deletion_request(
    rng: random.Random,
    level: str,
    functions: Sequence[CoveredFunction],
    workspace: Mapping[str, bytes],
    changed: Mapping[str, bytes],
    tests: Sequence[str],
    *,
    python: bool = True,
    roots: Sequence[str] = (),
) -> str:
    """Ask for the deleted ``functions``; the task is named after the first one.

    ``workspace``: the package with them; ``changed``: the files without them. The instruction mentions only functions
    whose definition is left: private helpers that were removed entirely are up to the solver. Code that is not
    ``python`` is not parsed, and its level is not ``precise``. ``roots``: as for ``module_name``.
    """
    spans = {path: function_spans(data.decode()) for path, data in changed.items()} if python else {}
    left = {(path, s.name) for path, found in spans.items() for s in found}
    public = [f for f in functions if (f.module, f.name) in left and not is_private(f.name)] or [functions[0]]
    files = ", ".join(f"`{name}`" for name in sorted({test.partition("::")[0] for test in tests})[:4])
    first = public[0]
    values = {
        "name": subject(public),
        "module": module_name(first.module, roots),
        "files": files,
        "purpose": purpose(workspace[first.module].decode(), first.name) if python else "",
        **_counted(public),
        "error": "NotImplementedError" if python else "`Error: not implemented`",
        "docs": "docstrings" if python else "comments",
    }
    if level == "precise":
        return rng.choice(_PRECISE).format(places=_places(public, workspace), **values)
    return rng.choice(_NORMAL if level == "normal" else _TERSE).format(**values)


def subject(functions: Sequence[CoveredFunction]) -> str:
    """A name for the functions: their class if they share one, else the first function."""
    owners = {f.name.rpartition(".")[0] for f in functions}
    owner = next(iter(owners))
    return f"`{owner}`" if len(functions) > 1 and len(owners) == 1 and owner else f"`{functions[0].name}`"


def purpose(source: str, name: str) -> str:
    """The first sentence of the docstring of a function, else of its class, with a trailing space; or empty."""
    for wanted in (name, name.rpartition(".")[0]):
        for node in _named(parse_python(source), wanted) if wanted else ():
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            sentence = text.partition(". ")[0].rstrip(".:")
            if 10 <= len(sentence) <= 200:
                return f"It is for this: {sentence[0].lower()}{sentence[1:]}. "
    return ""


def _named(tree: ast.Module, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    found: list[ast.AST] = [tree]
    for part in name.split("."):
        found = [n for node in found for n in _own(node) if n.name == part]
    return found  # type: ignore[return-value]


def _own(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the functions and classes of a module or class, also below ``if`` and ``try``, without nested ones."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
        else:
            yield from _own(child)


def _counted(functions: Sequence[CoveredFunction]) -> dict[str, str]:
    names = [f"`{f.name}`" for f in functions]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    where = sorted({f.module for f in functions})
    place = ", ".join(f"`{w}`" for w in where[:4]) + (" and others" if len(where) > 4 else "")
    many = len(names) > 1
    return {
        "what": f"{shown} in {place} {'are' if many else 'is'}",
        "what_short": f"{shown} ({place})",
        "it": "them" if many else "it",
    }


def _places(functions: Sequence[CoveredFunction], workspace: Mapping[str, bytes]) -> str:
    by_module: dict[str, list[CoveredFunction]] = defaultdict(list)
    for function in functions[:_MOST_SHOWN]:
        by_module[function.module].append(function)
    parts = []
    for module, found in by_module.items():
        source = workspace[module].decode()
        code = "\n\n".join(f"# {f.name}\n{signature_of(source, f.name)}" for f in sorted(found, key=lambda f: f.line))
        parts.append(f"`{PurePosixPath(module)}`:\n\n```python\n{code}\n```")
    if left := functions[_MOST_SHOWN:]:
        parts.append("and " + ", ".join(f"`{f.name}` (`{f.module}`)" for f in left))
    return "\n\n".join(parts)
