"""An append-only JSON Lines file with exactly one line per step, across kills and restarts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends ``{"step": n, ...}`` lines; a step that is already there is not written again."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.last_step = self._repair()

    def append(self, line: dict[str, Any]) -> bool:
        """True if the line was written, False if its step (or a later one) is already in the file."""
        if line["step"] <= self.last_step:
            return False
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)
        self.last_step = line["step"]
        return True

    def _repair(self) -> int:
        """Cut a line that a kill left half-written; the last step in the file, -1 for an empty one."""
        if not self.path.exists():
            return -1
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            with open(self.path, "r+b") as file:
                file.truncate(end)
        lines = data[:end].splitlines()
        return int(json.loads(lines[-1])["step"]) if lines else -1
