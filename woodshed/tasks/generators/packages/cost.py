"""Processor time of everything that a command started, boxes included, over all the times it was given."""

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
    """User and system time of this process, of its descendants, and of those of them that have ended.

    A process counts for its parent only when that has waited for it, so living descendants are looked up in ``/proc``,
    each with what it has waited for. Raises OSError where there is no ``/proc``.
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
                continue  # it has ended; whoever waits for it has its time
            fields = text.rpartition(")")[2].split()  # from the third on: state, parent, ... (proc(5))
            children[int(fields[1])].append(int(entry))
            times[int(entry)] = sum(map(int, fields[11:15]))  # utime, stime and those of children that were waited for
    living = list(children[os.getpid()])
    while living:
        pid = living.pop()
        total += times[pid] / _TICKS
        living += children[pid]
    return total


class Cost:
    """What the work in the folder ``out`` has cost, noted in ``out/.cost.jsonl`` as it goes on, so that a kill forgets
    little."""

    def __init__(self, out: Path) -> None:
        self._before = cpu_seconds()
        self._start = f"{os.getpid()}-{time.time_ns()}"
        self._lines = JsonLines(out / NAME)
        self._earlier = spent(out)

    def note(self) -> float:
        """Core-seconds of all starts, this one so far among them."""
        now = cpu_seconds() - self._before
        self._lines.append({"start": self._start, "cpu_seconds": round(now, 2)})
        return self._earlier + now


def spent(out: Path) -> float:
    """Core-seconds that are noted in ``out``: of each start the last line."""
    rows = read_jsonl(out / NAME)
    return sum({str(row.get("start")): float(row.get("cpu_seconds", 0.0)) for row in rows}.values())


def rate(tasks: int, core_seconds: float) -> str:
    """``tasks`` kept at the cost of ``core_seconds``, for the last line of a table."""
    hours = core_seconds / 3600
    each = f"{tasks / hours:.0f} tasks per core-hour" if hours > 0 else "no processor time"
    return f"{tasks} tasks in {hours:.3f} core-hours: {each}"
