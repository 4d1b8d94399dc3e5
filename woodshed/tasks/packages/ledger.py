"""Verdicts on candidates, one JSON line each, so that a build that was stopped goes on where it was."""

from __future__ import annotations

from pathlib import Path

from woodshed.record.jsonl import JsonLines
from woodshed.record.task import Task, TaskError

from .candidates import Candidate


class Ledger:
    """The verdicts in ``path`` that were reached under ``fingerprint``; others are reached again."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._lines = JsonLines(path)
        self.verdicts: dict[str, str | None] = {
            entry["slug"]: entry["rejected"] for entry in self._lines.rows() if entry.get("fingerprint") == fingerprint
        }

    def find(self, candidate: Candidate, out: Path) -> tuple[Task | None, str | None]:
        """(task, None) if it was kept and is still whole, (None, reason) if rejected, (None, None) if unknown."""
        if candidate.slug not in self.verdicts:
            return None, None
        why = self.verdicts[candidate.slug]
        if why is not None:
            return None, why
        try:
            return Task.load(out / candidate.slug), None
        except TaskError:
            return None, None

    def note(self, candidate: Candidate, rejected: str | None) -> None:
        self._lines.append({"slug": candidate.slug, "rejected": rejected, "fingerprint": self.fingerprint})
