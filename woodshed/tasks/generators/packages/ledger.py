"""Verdicts on candidates, one JSON line each, so that a build that was stopped goes on where it was."""

from __future__ import annotations

from pathlib import Path

from woodshed.record.jsonl import JsonLines
from woodshed.record.task import Task, TaskError


class Ledger:
    """The verdicts in ``path`` that were reached under ``fingerprint``; others are reached again."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._lines = JsonLines(path)
        rows = [row for row in self._lines.rows() if row.get("fingerprint") == fingerprint]
        self.verdicts: dict[str, str | None] = {row["slug"]: row["rejected"] for row in rows if "rejected" in row}
        self.untold: dict[str, tuple[str, ...]] = {row["slug"]: tuple(row["untold"]) for row in rows if "untold" in row}
        """Of candidates that were rejected with ``Untold``: which functions."""
        self._passed = {(row["slug"], row["passed"]) for row in rows if "passed" in row}

    def find(self, slug: str, out: Path) -> tuple[Task | None, str | None]:
        """(task, None) if it was kept and is still whole, (None, reason) if rejected, (None, None) if unknown."""
        if slug not in self.verdicts:
            return None, None
        why = self.verdicts[slug]
        if why is not None:
            return None, why
        try:
            return Task.load(out / slug), None
        except TaskError:
            return None, None

    def note(self, slug: str, rejected: str | None, untold: tuple[str, ...] = ()) -> None:
        self.verdicts[slug] = rejected
        more = {"untold": untold} if untold else {}
        if untold:
            self.untold[slug] = untold
        self._lines.append({"slug": slug, "rejected": rejected, **more, "fingerprint": self.fingerprint})

    def has_passed(self, slug: str, gate: str) -> bool:
        """Whether a kept task has passed a gate that only some have to."""
        return (slug, gate) in self._passed

    def note_passed(self, slug: str, gate: str) -> None:
        self._passed.add((slug, gate))
        self._lines.append({"slug": slug, "passed": gate, "fingerprint": self.fingerprint})
