"""Tell whether a test fails because of the code under test, or because something around it is broken.

A test that cannot be imported, lacks a fixture or runs out of time says nothing about the code, unless the failed
import is of a name that only the solution defines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from woodshed.record.python_source import parse_python

_WRONG = re.compile(
    r"^(?:E +)?((?:ModuleNotFound|Import|Syntax|Indentation|Tab|Memory)Error\b.*|fixture '.*' not found.*"
    r"|(?:\w+\.)*TimeLimit\b.*|KeyboardInterrupt\b.*|OSError: \[Errno (?:12|23|24|28|30)\].*)$",
    re.MULTILINE,
)
_WRONG_IN_NODE = re.compile(
    r"^((?:Error: )?(?:Cannot find (?:module|package) '.*|E(?:NOSPC|MFILE|NFILE|ROFS)\b.*))$", re.MULTILINE
)
"""Without SyntaxError: ``JSON.parse`` throws it, and changed code always parses."""
_NAMED = re.compile(r"'([\w.]+)'")
_LACKS = re.compile(r"\b(?:ModuleNotFound|Import|Attribute|Name)Error\b")


def wrong_reason(text: str, defined: Iterable[str] = (), grader: str = "pytest") -> str:
    """The line of a test's output ``text`` that reports a failure around the code under test; empty if there is none.

    ``defined``: names that only the solution has; a failed import of one of them is a valid reason.
    """
    own = frozenset(defined)
    for match in (_WRONG_IN_NODE if grader == "node" else _WRONG).finditer(text):
        names = {part for name in _NAMED.findall(match[1]) for part in name.split(".")}
        if not ("Import" in match[1] or "ModuleNotFound" in match[1]) or not names & own:
            return match[1].strip()
    return ""


def names_missing(text: str, defined: Iterable[str]) -> bool:
    """Return whether the output ``text`` of pytest reports that a name is missing which only the solution defines."""
    lines = [line for line in text.splitlines() if _LACKS.search(line)]
    return bool({part for line in lines for name in _NAMED.findall(line) for part in name.split(".")} & set(defined))


def defined_names(before: Mapping[str, bytes], gold: Mapping[str, bytes]) -> frozenset[str]:
    """Names that the solution's files define, and their module names, if the same files in ``before`` lack them."""
    known = {name for path in gold if path in before for name in _names(path, before[path])}
    return frozenset(name for path, data in gold.items() for name in _names(path, data)) - known


def _names(path: str, data: bytes) -> Iterator[str]:
    pure = PurePosixPath(path)
    yield pure.parent.name if pure.stem == "__init__" else pure.stem
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
