"""What separates the workspace of a task from its reference solution."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from woodshed.record.task import Task


@dataclass(frozen=True)
class Change:
    """``diff``: unified, from the workspace to the solution. ``lines``: added and removed ones together, as patches of
    benchmarks are counted."""

    files: tuple[str, ...]
    lines: int
    diff: str


def change_of(task: Task) -> Change:
    """The change that the reference solution makes. Files that are no text count as one changed line each."""
    files, parts, lines = [], [], 0
    for path, gold in task.solution_files().items():
        place = task.workspace / path
        start = place.read_bytes() if place.is_file() and not place.is_symlink() else None
        if start == gold:
            continue
        files.append(path)
        try:
            before, after = (start or b"").decode().splitlines(), gold.decode().splitlines()
        except UnicodeDecodeError:
            parts.append(f"binary file {path} differs")
            lines += 1
            continue
        hunks = list(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm="", n=3))
        lines += sum(line[0] in "+-" for line in hunks[2:])
        parts.append("\n".join(hunks))
    return Change(tuple(files), lines, "\n".join(parts))


def generator_of(task: Task) -> str:
    """What made the task: ``bug`` (one changed line), ``deletion`` (one body removed), another kind of change by its
    name, else the family."""
    known = {"mutate": "bug", "delete_function": "deletion"}
    stated = task.info.provenance.get("generator", "")
    if stated:
        return known.get(stated, stated)
    if task.info.family in ("synthetic", "package") and task.info.kind:
        return known.get(task.info.kind, "bug")
    return task.info.family


def source_of(task: Task) -> str:
    """Where its code is from: a package by name, else the family."""
    return task.info.provenance.get("package") or task.info.family
