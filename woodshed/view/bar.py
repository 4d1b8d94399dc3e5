"""Progress of one long command: a bar on a terminal, an occasional line in a log file."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from woodshed.record.visible import visible

SECONDS_PER_LINE = 30.0


class Bar:
    """Progress display, called with (done, total, note); ``total`` 0: not known yet. Notes may be untrusted text.

    In a log file, the last note is repeated if nothing new comes for a while, so that silence means a dead process.
    """

    def __init__(self, console: Console) -> None:
        columns = [BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("starting", total=None)
        self._started = self._last_line = time.monotonic()
        self._last = (0, 0, Text("starting"))
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._repeater = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def __call__(self, done: int, total: int, note: str) -> None:
        shown = Text(visible(note.partition("\n")[0]))
        if self._console.is_terminal:
            self._progress.update(self._task, completed=done, total=total or None, description=shown.markup)
            return
        with self._lock:
            self._last = (done, total, shown)
        self._line()

    def _line(self) -> None:
        """Print the last note, unless a line was printed in the last ``SECONDS_PER_LINE``."""
        with self._lock:
            now = time.monotonic()
            if now - self._last_line < SECONDS_PER_LINE:
                return
            self._last_line = now
            done, total, shown = self._last
            count = f"{done}/{total}" if total else str(done)
            self._console.print(Text.assemble(f"{clock(now - self._started)} {count} ", shown), soft_wrap=True)

    def _repeat(self) -> None:
        while not self._ended.wait(SECONDS_PER_LINE):
            self._line()

    def __enter__(self) -> Bar:
        self._progress.start()
        if not self._console.is_terminal:
            self._repeater.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        if self._repeater.is_alive():
            self._repeater.join()
        self._progress.stop()


def clock(seconds: float) -> str:
    """Format minutes and seconds, such as 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
