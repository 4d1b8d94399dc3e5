"""Commits from the output of ``git log``, and which of them are worth replaying. Nothing is checked out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_FILES = 15
MOST_LINES = 400
_NO_TASK = re.compile(
    r"(?i)^(?:merge|revert|release|bump|version|v?\d+\.\d+|wip\b|typo|update changelog|prepare|initial commit)"
)


@dataclass(frozen=True)
class Commit:
    """One commit. ``id`` and ``parent``: 40 hex digits; ``files``: paths that differ from the parent; ``lines``: number
    of added plus removed lines."""

    id: str
    parent: str
    message: str
    files: tuple[str, ...]
    lines: int


LOG = ("log", "--no-merges", "--no-renames", "--numstat", "-z", "--format=%x01%H%x00%P%x00%B%x00")
"""Arguments of git that give the output which ``parse_log`` reads."""


def parse_log(output: bytes) -> list[Commit]:
    """The commits of ``git log``, newest first, without roots and without binary changes."""
    found = []
    for record in output.decode("utf-8", "replace").split("\x01")[1:]:
        commit, parents, message, *rest = record.split("\0")
        stats = [line.strip("\n").split("\t") for line in rest if line.count("\t") == 2]
        if not parents or not stats:
            continue
        lines = sum(int(added) + int(removed) for added, removed, _ in stats if added.isdigit())
        found.append(
            Commit(
                id=commit,
                parent=parents.split()[0],
                message=message.strip(),
                files=tuple(path for _, _, path in stats),
                lines=lines,
            )
        )
    return found


def replayable(commits: Sequence[Commit], code: Sequence[str], tests: Sequence[str]) -> list[Commit]:
    """The commits that change Python files below both ``code`` and ``tests``, are small, and have a telling message."""

    def touches(commit: Commit, roots: Sequence[str], others: Sequence[str]) -> bool:
        return any(f.endswith(".py") and _below(f, roots) and not _below(f, others) for f in commit.files)

    return [
        c
        for c in commits
        if len(c.files) <= MOST_FILES
        and c.lines <= MOST_LINES
        and len(c.message.partition("\n")[0]) >= 12
        and not _NO_TASK.match(c.message)
        and touches(c, code, tests)
        and touches(c, tests, ())
    ]


def _below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
