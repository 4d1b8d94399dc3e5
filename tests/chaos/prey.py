"""The processes of a run: finding them, killing them, knowing when none is left."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

PLANES = ("server", "trainer", "rollouts", "fork_server")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, int, str] | None:
    """State, parent, start time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), fields[19]


def _table() -> dict[int, tuple[str, int, str]]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


class Prey:
    """Everything that ever descended from the ``woodshed run`` processes that were given to ``follow``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.roots: set[int] = set()
        self.seen: set[tuple[int, str]] = set()

    def follow(self, pid: int) -> None:
        self.roots.add(pid)

    def look(self) -> None:
        """Remember who descends from the run now."""
        table = _table()
        family = {pid for pid in table if pid in self.roots or (pid, table[pid][2]) in self.seen}
        grown = True
        while grown:
            children = {pid for pid, (_, parent, _) in table.items() if parent in family} - family
            family |= children
            grown = bool(children)
        self.seen |= {(pid, table[pid][2]) for pid in family}

    def find(self, plane: str) -> int | None:
        """A live process of a plane of this run; of several engines any."""
        found = self.find_all(plane)
        return random.choice(found) if found else None

    def find_all(self, plane: str) -> list[int]:
        """The live processes of a plane of this run."""
        table = _table()
        live = {pid: _command(pid) for pid, (state, _, _) in table.items() if state not in "ZX"}
        here = re.compile(re.escape(str(self.root)) + "[/ ]")
        ours = {pid: line for pid, line in live.items() if here.search(line)}
        marks = {
            "server": "woodshed.gateway.serve",
            "engine": "woodshed.engine.remote.service",
            "trainer": "woodshed.train.worker",
            "rollouts": "stages rollouts",
        }
        rollouts = [pid for pid, line in ours.items() if marks["rollouts"] in line]
        if plane == "fork_server":
            return [
                p
                for p, line in live.items()
                if "woodshed.sandbox.backends.namespace.fork_server" in line and table[p][1] in rollouts
            ]
        return [pid for pid, line in ours.items() if marks[plane] in line]

    def kill_one(self, plane: str) -> bool:
        """Kill a live process of a plane, if there is one."""
        pid = self.find(plane)
        return pid is not None and self.kill(pid)

    def kill(self, pid: int) -> bool:
        self.look()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def alive(self) -> list[str]:
        """Command lines of what is left."""
        table = _table()
        left = [pid for pid, (state, _, start) in table.items() if (pid, start) in self.seen and state not in "ZX"]
        return [f"{pid} {_command(pid)}" for pid in left]
