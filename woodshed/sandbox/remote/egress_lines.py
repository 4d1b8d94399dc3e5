"""The lines that a host's egress log gets, handed to the clients whose boxes they are about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .leases import Lease


class EgressLines:
    """Reads ``log`` from where it ends now, and numbers its lines from 1."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._count = 0
        self._at = log.stat().st_size if log.exists() else 0

    def deal(self, owner: Callable[[str], Lease | None]) -> None:
        """Give each new line to the lease of its box; those of nobody stay in the file alone."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            self._count += 1
            if (lease := owner(row["box"])) is not None:
                lease.note(self._count, row)
