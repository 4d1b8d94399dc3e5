"""Progress of one long command: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..record.visible import visible

SECONDS_PER_LINE = 30.0


class Bar:
    """Called with (done, total, note); ``total`` 0 is not known yet. Notes may be anybody's text."""

    def __init__(self, console: Console) -> None:
        columns = [BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("starting", total=None)
        self._started = self._last_line = time.monotonic()

    def __call__(self, done: int, total: int, note: str) -> None:
        shown = Text(visible(note.partition("\n")[0]))
        if self._console.is_terminal:
            self._progress.update(self._task, completed=done, total=total or None, description=shown.markup)
        elif (now := time.monotonic()) - self._last_line >= SECONDS_PER_LINE:
            self._last_line = now
            count = f"{done}/{total}" if total else str(done)
            self._console.print(Text.assemble(f"{clock(now - self._started)} {count} ", shown), soft_wrap=True)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()


def clock(seconds: float) -> str:
    """Minutes and seconds: 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
