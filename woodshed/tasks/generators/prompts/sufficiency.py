"""Decide whether an instruction states what the hidden tests require; if not, the tests are shown.

The decision is by rules that do not depend on how the instruction was written. A hidden test requires something
unstated if it uses a word of the solution that is neither in the instruction nor in any file that the agent has, or if
it compares with a number or text that is in none of these and not among its own inputs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from woodshed.record.python_source import parse_python

MOST_CHARACTERS = 4000
"""Maximum length of tests that are shown in the instruction; longer ones are put into the workspace instead."""

_WORD = re.compile(r"[A-Za-z_]\w+|\d{2,}")
_RAISES = ("raises", "warns")
Path = tuple[str, ...]
"""Names of the enclosing classes and of the function; the last one is empty for other statements."""
_HEAD = "\n\nWhat is asked for is what these tests check; they are not in the workspace:\n\n"


@dataclass(frozen=True)
class Reading:
    """``unstated``: words that hidden tests require and nothing states, sorted. ``source``: file -> hidden tests and
    the helpers they use. ``whole``: True if every failing test was found."""

    unstated: tuple[str, ...]
    source: Mapping[str, str]
    whole: bool

    @property
    def suffices(self) -> bool:
        return self.whole and not self.unstated

    def shown(self) -> str:
        """The hidden tests as the end of an instruction; empty if they are too long, or not all were found."""
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
    """Compare ``instruction`` and ``start`` (all that the agent gets) with the ``failing`` tests in the files ``tests``
    (as they are graded). Statements that the agent has word for word are not hidden."""
    unstated: set[str] = set()
    source: dict[str, str] = {}
    whole = True
    known = _words([instruction, *(d.decode("utf-8", "replace") for d in start.values())])
    new = _words(d.decode("utf-8", "replace") for d in gold.values()) - known
    for file in sorted(tests):
        wanted = {tuple(t.partition("[")[0].split("::")[1:]) for t in failing if t.startswith(f"{file}::")}
        text, given = (f.get(file, b"").decode("utf-8", "replace") for f in (tests, start))
        try:
            tree = parse_python(text)
        except (SyntaxError, ValueError):
            return Reading((), {}, False)
        whole &= wanted <= {path for path, _ in _statements(tree)}
        pieces = [(_lines(text, n), n) for path, n in _statements(tree) if path in wanted or not _is_test(path)]
        hidden = [(lines, node) for lines, node in pieces if lines not in given]
        near = _words([instruction, given, *(start.get(name, b"").decode("utf-8", "replace") for name in gold)])
        for lines, node in hidden:
            unstated |= new & _words([lines])
            unstated |= (_compared(node) | _raised(node)) - near
        # Names that the tests import must exist, whatever the tests do with them.
        unstated |= new & _words(_imports(tree))
        if hidden:
            source[file] = "\n\n".join(lines for lines, _ in hidden)
    return Reading(tuple(sorted(unstated)), source, whole)


def _words(texts: Iterable[str]) -> set[str]:
    return {word.lower() for text in texts for word in _WORD.findall(text)}


def _statements(tree: ast.Module | ast.ClassDef, path: Path = ()) -> Iterator[tuple[Path, ast.stmt]]:
    """Yield (path, statement) of everything in a module and its classes except imports and docstrings."""
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
    """Lines of a statement and its decorators, which hold the parameters of a test."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(text.split("\n")[first - 1 : node.end_lineno])


def _imports(tree: ast.Module) -> list[str]:
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return [alias.name for node in nodes for alias in node.names]


def _compared(node: ast.stmt) -> set[str]:
    """Words and numbers of constants that a test compares with and does not pass to a call.

    All constants of parameters and of statements outside tests (tables) count, as any of them may be compared with.
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
    """Words of the exceptions that a test expects."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    first = [call.args[0] for call in calls if (_name(call) in _RAISES or "Raises" in _name(call)) and call.args]
    return _words(n.id for value in first for n in ast.walk(value) if isinstance(n, ast.Name))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _constants(node: ast.AST) -> set[str]:
    values = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return _words(str(v) for v in values if isinstance(v, str | int | float) and not isinstance(v, bool))
