"""What became of a box's requests to the outside: counted, and one JSON line each where a log is kept."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from woodshed.record.jsonl import JsonLines

_LOGGED = 500
"""Characters of any text of a line: a box may ask for names as long as a request's head."""


class Record:
    """``counts``: ``requests``, ``refused``, ``up`` and ``down`` (bytes) so far."""

    def __init__(self, box: str, log: JsonLines | None) -> None:
        self.box = box
        self.counts = Counter(requests=0, refused=0, up=0, down=0)
        self._log = log

    def __call__(self, entry: dict[str, Any]) -> None:
        entry = {key: value[:_LOGGED] if isinstance(value, str) else value for key, value in entry.items()}
        refused = int(bool(entry["reason"]))
        self.counts.update(requests=1, refused=refused, up=entry["up"], down=entry["down"])
        if self._log is not None:
            self._log.append({"time": round(time.time(), 3), "box": self.box, **entry})
