"""Leak scan of a workspace: find files in which an agent can read the answer.

The n-grams of tokens that the reference solution has and the changed file lacks are searched in every readable byte of
the workspace: text in several encodings and escapings, archives (nested too), compressed files, SQLite databases,
bytecode (unmarshalled in a child process). ``root_leaks.py`` scans the rest of the box. Files of version control,
caches and installed copies are leaks by their name alone. The checks follow post-mortems of SWE-bench and SWE-smith; an
allow-list (``packages/workspace.py``) keeps leaks out, and this scan verifies it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from woodshed.record.python_source import parse_python
from woodshed.record.task import Task

from .leak_readers import code_objects, fingerprints, texts_of

N = 6
"""Tokens of an n-gram; a shorter line of at least ``SHORTEST`` tokens is one n-gram."""
SHORTEST = 4
THRESHOLD = 0.5
"""A file is a leak if it holds at least this share of the solution's n-grams."""
COPY = 0.9
"""A file is a leak if what is left in it holds at least this share of the n-grams of removed lines (a twin of them)."""
_LONG = 20
"""Removed lines with fewer n-grams than this may resemble others by chance."""

_TOKEN = re.compile(r"[^\W\d]\w*|\d+|[^\s\w]")
_FORBIDDEN = re.compile(
    r"(^|/)(\.git|\.hg|\.svn|__pycache__|\.mypy_cache|\.pytest_cache|\.ruff_cache|\.hypothesis|\.tox|\.nox|"
    r"site-packages|node_modules|[^/]+\.(egg-info|dist-info))(/|$)|\.(pyc|pyo|orig|rej|bak|swp)$|~$"
)


@dataclass(frozen=True)
class Leak:
    """A file that holds the answer. ``kind``: ``path`` (forbidden name), ``text``, ``bytecode`` or ``copy`` (a twin of
    removed lines); ``share``: of the n-grams that was found; ``sample``: one of them."""

    path: str
    kind: str
    share: float
    sample: str


def scan_task(task: Task) -> list[Leak]:
    """Leaks in the workspace and the instruction of a task. The instruction may state signatures and docstrings."""
    start, gold = task.workspace_files(), task.solution_files()
    known = {path: start.get(path, b"") + b"\n" + interface_of(data) for path, data in gold.items()}
    found = [*scan(start, start, gold), *scan({"(instruction)": task.instruction.encode()}, known, gold)]
    return [*found, *copies(start, gold)]


def copies(start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> list[Leak]:
    """Files of ``start`` that hold, nearly word for word, lines that were removed from them or from other files."""
    removed: set[tuple[str, ...]] = set()
    for path, data in gold.items():
        kept = Counter(start.get(path, b"").splitlines())
        lines = []
        for line in data.splitlines():
            if kept[line] > 0:
                kept[line] -= 1
            else:
                lines.append(line)
        removed.update(_windows(tokenise(b"\n".join(lines).decode("utf-8", "replace")), N))
    if len(removed) < _LONG:
        return []
    found = []
    for path, data in start.items():
        hits = removed & _ngrams(data, N)
        if len(hits) >= COPY * len(removed):
            found.append(Leak(path, "copy", len(hits) / len(removed), " ".join(max(hits))))
    return found


def scan(files: Mapping[str, bytes], before: Mapping[str, bytes], gold: Mapping[str, bytes]) -> list[Leak]:
    """Leaks in ``files`` of what ``gold`` has and ``before`` (the files that the agent starts from) lacks.

    Solution lines of fewer than ``SHORTEST`` tokens are ignored: they are too short to recognise.
    """
    wanted = answer_ngrams(before, gold)
    found: list[Leak] = []
    for path, data in files.items():
        if forbidden_name(path):
            found.append(Leak(path, "path", 1.0, PurePosixPath(path).name))
        leak = _scan_text(path, data, wanted) or _scan_bytecode(path, data, before, gold)
        if leak is not None:
            found.append(leak)
    return found


def forbidden_name(path: str) -> bool:
    """Return whether a file is a leak by its name alone: version control, a cache, an installed copy, a backup."""
    return _FORBIDDEN.search(path) is not None


def interface_of(data: bytes) -> bytes:
    """The lines of a Python file that hold signatures and docstrings; empty if it does not parse."""
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError):
        return b""
    lines = data.split(b"\n")
    kept: list[bytes] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first, last = node.lineno - 1, node.body[0].lineno - 1
            if ast.get_docstring(node) is not None:
                last = node.body[0].end_lineno or last
            kept += lines[first : max(first + 1, last)] if node.body[0].lineno > node.lineno else []
    return b"\n".join(kept)


def answer_ngrams(before: Mapping[str, bytes], gold: Mapping[str, bytes]) -> frozenset[tuple[str, ...]]:
    """N-grams, within lines, of the solution that the file as the agent gets it does not contain."""
    wanted: set[tuple[str, ...]] = set()
    for path, data in gold.items():
        own = data.decode("utf-8", "replace")
        start = before.get(path, b"").decode("utf-8", "replace")
        for line in own.splitlines():
            tokens = tokenise(line)
            if len(tokens) >= SHORTEST:
                wanted.update(_windows(tokens, min(N, len(tokens))))
        given = tokenise(start)
        for size in {len(w) for w in wanted}:
            wanted.difference_update(_windows(given, size))
    return frozenset(wanted)


def tokenise(text: str) -> list[str]:
    """Identifiers, numbers and single signs; single and double quotes are the same sign, whitespace is dropped."""
    return _TOKEN.findall(text.replace('"', "'"))


def _windows(tokens: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[i:] for i in range(size)), strict=False)


def _scan_text(path: str, data: bytes, wanted: frozenset[tuple[str, ...]]) -> Leak | None:
    if not wanted:
        return None
    hits: set[tuple[str, ...]] = set()
    for size in {len(w) for w in wanted}:
        hits |= wanted & _ngrams(data, size)
    share = len(hits) / len(wanted)
    if share < THRESHOLD:
        return None
    return Leak(path, "text", share, " ".join(max(hits)))


@lru_cache(maxsize=2048)  # the workspaces of one package differ in a single file
def _ngrams(data: bytes, size: int) -> frozenset[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for text in texts_of(data):
        found.update(_windows(tokenise(text), size))
    return frozenset(found)


def _scan_bytecode(path: str, data: bytes, before: Mapping[str, bytes], gold: Mapping[str, bytes]) -> Leak | None:
    held = code_objects(data)
    if held is None:
        return None
    answer = set().union(*(_code_of(v) for v in gold.values())) if gold else set()
    start = set().union(*(_code_of(before[p]) for p in gold if p in before)) if gold else set()
    missing = {c for c in answer - start if not c[0].startswith("<module")}
    hits = missing & set(held)
    if not hits:
        return None
    return Leak(path, "bytecode", len(hits) / len(missing), sorted(hits)[0][0])


def _code_of(source: bytes) -> set[tuple[str, str]]:
    try:
        return set(fingerprints(compile(source, "<gold>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return set()
