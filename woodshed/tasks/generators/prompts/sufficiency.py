"""Whether an instruction says what tests ask for that the agent does not see; else the tests are shown.

The reading is by rule and independent of how the instruction was written. A hidden test asks for something unstated
where it uses a word that the solution brings and neither the instruction nor any file that the agent has contains, or
where it compares with a number or a text that is in none of these and not among its own inputs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST_CHARACTERS = 4000
"""Of tests that are shown in the instruction; longer ones are put into the workspace instead."""

_WORD = re.compile(r"[A-Za-z_]\w+|\d{2,}")
_RAISES = ("raises", "warns")
Path = tuple[str, ...]
"""Names of classes and of a function in these; of other statements the last one is empty."""
_HEAD = "\n\nWhat is asked for is what these tests check; they are not in the workspace:\n\n"


@dataclass(frozen=True)
class Reading:
    """``unstated``: what hidden tests ask for and nothing says, sorted; ``source``: those tests and what they use, by
    file. ``whole``: whether each of them was found there."""

    unstated: tuple[str, ...]
    source: Mapping[str, str]
    whole: bool

    @property
    def suffices(self) -> bool:
        return self.whole and not self.unstated

    def shown(self) -> str:
        """The hidden tests as the end of an instruction; empty where they are too long for one, or not all there."""
        parts = [f"```python\n# {file}\n{text}\n```" for file, text in self.source.items()]
        text = _HEAD + "\n\n".join(parts) + "\n"
        return text if self.whole and parts and len(text) <= MOST_CHARACTERS else ""


def read_instruction(
    instruction: str,
    start: Mapping[str, bytes],
    gold: Mapping[str, bytes],
    tests: Mapping[str, bytes],
    failing: Sequence[str],
) -> Reading:
    """Hold ``instruction`` and ``start`` (all that the agent gets) against the ``failing`` tests of the files ``tests``
    (as they are graded). What the agent has word by word is not hidden."""
    unstated: set[str] = set()
    source: dict[str, str] = {}
    whole = True
    known = _words([instruction, *(d.decode("utf-8", "replace") for d in start.values())])
    new = _words(d.decode("utf-8", "replace") for d in gold.values()) - known
    for file in sorted(tests):
        wanted = {tuple(t.partition("[")[0].split("::")[1:]) for t in failing if t.startswith(f"{file}::")}
        text, given = (f.get(file, b"").decode("utf-8", "replace") for f in (tests, start))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return Reading((), {}, False)
        whole &= wanted <= {path for path, _ in _statements(tree)}
        pieces = [(_lines(text, n), n) for path, n in _statements(tree) if path in wanted or not _is_test(path)]
        hidden = [(lines, node) for lines, node in pieces if lines not in given]
        near = _words([instruction, given, *(start.get(name, b"").decode("utf-8", "replace") for name in gold)])
        for lines, node in hidden:
            unstated |= new & _words([lines])
            unstated |= (_compared(node) | _raised(node)) - near
        # What the tests import must exist, whatever they do with it.
        unstated |= new & _words(_imports(tree))
        if hidden:
            source[file] = "\n\n".join(lines for lines, _ in hidden)
    return Reading(tuple(sorted(unstated)), source, whole)


def _words(texts: Iterable[str]) -> set[str]:
    return {word.lower() for text in texts for word in _WORD.findall(text)}


def _statements(tree: ast.Module | ast.ClassDef, path: Path = ()) -> Iterator[tuple[Path, ast.stmt]]:
    """Everything in a module and its classes but imports and docstrings, with the names that lead to functions."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _statements(node, (*path, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (*path, node.name), node
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) and not _is_text(node):
            yield (*path, ""), node


def _is_test(path: Path) -> bool:
    return path[-1].startswith("test")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _lines(text: str, node: ast.stmt) -> str:
    """Lines of a statement with its decorators, which hold the parameters of a test."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def _imports(tree: ast.Module) -> list[str]:
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return [alias.name for node in nodes for alias in node.names]


def _compared(node: ast.stmt) -> set[str]:
    """Words and numbers of constants that a test compares with and that it gives to no call.

    Of parameters nothing says which are compared with, so all are; and all of a table beside the tests.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _constants(node)
    expected = {word for decorator in node.decorator_list for word in _constants(decorator)}
    inputs: set[str] = set()
    for found in (inner for statement in node.body for inner in ast.walk(statement)):
        if isinstance(found, ast.Call):
            given = [*found.args, *(keyword.value for keyword in found.keywords)]
            words = {word for value in given for word in _constants(value)}
            if _name(found).startswith("assert") or _name(found) in _RAISES:
                expected |= words
            else:
                inputs |= words
        elif isinstance(found, ast.Compare):
            expected |= {word for side in (found.left, *found.comparators) for word in _constants(side)}
    return expected - inputs


def _raised(node: ast.stmt) -> set[str]:
    """Exceptions that a test expects."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    first = [call.args[0] for call in calls if (_name(call) in _RAISES or "Raises" in _name(call)) and call.args]
    return _words(n.id for value in first for n in ast.walk(value) if isinstance(n, ast.Name))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _constants(node: ast.AST) -> set[str]:
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return _words(str(v) for v in values if isinstance(v, str | int | float) and not isinstance(v, bool))
