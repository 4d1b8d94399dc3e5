"""A JSON Lines file with exactly one line per step, across kills and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from woodshed.record.jsonl import JsonLines


class MetricsLog:
    """Appends ``{"step": n, ...}`` lines; a step that is already there is not written again."""

    def __init__(self, path: Path | str) -> None:
        self._lines = JsonLines(Path(path))
        rows = self._lines.rows()
        self.last_step = int(rows[-1]["step"]) if rows else -1

    def append(self, line: dict[str, Any]) -> bool:
        """Append ``line``. Returns False, without writing, if its step (or a later one) is already in the file."""
        if line["step"] <= self.last_step:
            return False
        self._lines.append(line)
        self.last_step = line["step"]
        return True
