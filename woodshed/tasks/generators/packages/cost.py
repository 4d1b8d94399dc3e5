"""Processor time of a command and everything it starts, boxes included, summed over all starts in one folder."""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from pathlib import Path

from woodshed.record.jsonl import JsonLines, read_jsonl

NAME = ".cost.jsonl"
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time in seconds of this process and all its descendants, living and ended.

    The kernel adds the time of a child to its parent only once the parent has waited for it, so living descendants are
    read from ``/proc``, each with the children that it has waited for. Raises OSError without ``/proc``.
    """
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    children: dict[int, list[int]] = defaultdict(list)
    times: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text("utf-8", "replace")
            except OSError:
                continue  # it has ended; its time is in that of its parent
            fields = text.rpartition(")")[2].split()  # from the third field on: state, parent, ... (proc(5))
            children[int(fields[1])].append(int(entry))
            times[int(entry)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    living = list(children[os.getpid()])
    while living:
        pid = living.pop()
        total += times[pid] / _TICKS
        living += children[pid]
    return total


class Cost:
    """Processor time of the work in the folder ``out``, appended to ``out/.cost.jsonl`` as it goes on, so that little
    is lost if the process is killed."""

    def __init__(self, out: Path) -> None:
        self._before = cpu_seconds()
        self._start = f"{os.getpid()}-{time.time_ns()}"
        self._lines = JsonLines(out / NAME)
        self._earlier = spent(out)

    def note(self) -> float:
        """Record the time of this start so far; return the core-seconds of all starts."""
        now = cpu_seconds() - self._before
        self._lines.append({"start": self._start, "cpu_seconds": round(now, 2)})
        return self._earlier + now


def spent(out: Path) -> float:
    """Core-seconds that are recorded in ``out``: the sum of the last line of each start."""
    rows = read_jsonl(out / NAME)
    return sum({str(row.get("start")): float(row.get("cpu_seconds", 0.0)) for row in rows}.values())


def rate(tasks: int, core_seconds: float) -> str:
    """The last line of a report: number of tasks, core-hours, tasks per core-hour."""
    hours = core_seconds / 3600
    each = f"{tasks / hours:.0f} tasks per core-hour" if hours > 0 else "no processor time"
    return f"{tasks} tasks in {hours:.3f} core-hours: {each}"
