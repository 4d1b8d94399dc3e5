"""The difference between the workspace of a task and its reference solution."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from woodshed.record.task import Task


@dataclass(frozen=True)
class Change:
    """``diff``: unified diff from the workspace to the solution. ``lines``: number of added plus removed lines, as
    benchmarks count their patches."""

    files: tuple[str, ...]
    lines: int
    diff: str


def change_of(task: Task) -> Change:
    """Return the change that the reference solution makes. A file that is not text counts as one changed line."""
    files, parts, lines = [], [], 0
    for path, gold in task.solution_files().items():
        place = task.workspace / path
        start = place.read_bytes() if place.is_file() and not place.is_symlink() else None
        if start == gold:
            continue
        files.append(path)
        try:
            before, after = _lines(start or b""), _lines(gold)
        except UnicodeDecodeError:
            parts.append(f"binary file {path} differs")
            lines += 1
            continue
        hunks = list(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm="", n=3))
        lines += sum(line[0] in "+-" for line in hunks[2:])
        parts.append("\n".join(hunks))
    return Change(tuple(files), lines, "\n".join(parts))


def _lines(data: bytes) -> list[str]:
    """Return the lines of a text as git sees them: only a line feed ends one, and a last line without one differs from
    the same line with one. Raises UnicodeDecodeError."""
    *whole, rest = data.decode().split("\n")
    return [*whole, f"{rest}\n\\ No newline at end of file"] if rest else whole


def generator_of(task: Task) -> str:
    """Return how the task was made: ``bug`` (one changed line), ``deletion`` (one body removed), the name of another
    kind of change, else the family."""
    known = {"mutate": "bug", "delete_function": "deletion"}
    stated = task.info.provenance.get("generator", "")
    if stated:
        return known.get(stated, stated)
    if task.info.family in ("synthetic", "package") and task.info.kind:
        return known.get(task.info.kind, "bug")
    return task.info.family


def source_of(task: Task) -> str:
    """Return the origin of the code: the name of the package, else the family of the task."""
    return task.info.provenance.get("package") or task.info.family
