"""Display while a recipe runs: stages, progress, and what the agent just did.

On a terminal, a table that is updated in place; elsewhere (a log file, CI), a line when a stage begins, ends or has
made progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from woodshed.record.run_directory import RunDirectory
from woodshed.record.visible import visible
from woodshed.rl.health.watch import read_alarms
from woodshed.view.bar import SECONDS_PER_LINE, clock

from .curves import CurveWatch
from .plan import Stage

Running = Mapping[str, tuple[Stage, Any, float]]
"""Running stages by name: the stage, its supervisor, and when it began on ``time.monotonic``."""


class Screen(Protocol):
    def notice(self, text: str) -> None: ...

    def update(self, running: Running, finished: Collection[str]) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *details: Any) -> None: ...


def screen_for(run: RunDirectory, stages: list[Stage], curves: CurveWatch, console: Console) -> Screen:
    if console.is_terminal:
        return TableScreen(run, stages, curves, console)
    return LineScreen(run, stages, console)


class TableScreen:
    def __init__(self, run: RunDirectory, stages: list[Stage], curves: CurveWatch, console: Console):
        self.run, self.stages, self.curves = run, stages, curves
        self.notices: deque[str] = deque(maxlen=4)
        self._live = Live(console=console, refresh_per_second=2, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.stop()

    def notice(self, text: str) -> None:
        self.notices.append(_one_line(f"{time.strftime('%H:%M:%S')} {text}"))

    def update(self, running: Running, finished: Collection[str]) -> None:
        self._live.update(self._table(running, finished))

    def _table(self, running: Running, finished: Collection[str]) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for stage in self.stages:
            if stage.name in finished:
                result = self.run.stage_result(stage.name) or {}
                note = Text(_one_line(str(result.get("note", ""))))
                table.add_row("[green]done[/]", stage.title, clock(result.get("seconds", 0.0)), note)
            elif stage.name in running:
                progress = self.run.read_progress(stage.name)
                done, total = progress.get("done", 0), progress.get("total", 0)
                bar = ProgressBar(total=total or None, completed=done, width=24, pulse=not total)
                elapsed = clock(time.monotonic() - running[stage.name][2])
                shown: list[RenderableType] = [bar, Text(_got_on(progress))]
                if curve := self.curves.drawn(stage.name):
                    shown.append(Text(curve, style="green"))
                table.add_row("[cyan]now[/]", stage.title, elapsed, Group(*shown))
            else:
                table.add_row("[dim]-[/]", f"[dim]{stage.title}[/]", "", "")
        return Group(table, *(Text(n, style="yellow") for n in self.notices))


class LineScreen:
    def __init__(self, run: RunDirectory, stages: list[Stage], console: Console):
        self.run, self.stages, self.console = run, stages, console
        self._told: set[str] = set()
        self._shown: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: Any) -> None:
        pass

    def notice(self, text: str) -> None:
        self.console.print(Text(_one_line(f"{time.strftime('%H:%M:%S')} {text}")), soft_wrap=True)

    def update(self, running: Running, finished: Collection[str]) -> None:
        for stage in self.stages:
            if stage.name in finished and stage.name not in self._told:
                self._told.add(stage.name)
                result = self.run.stage_result(stage.name) or {}
                took = clock(result.get("seconds", 0.0))
                self.notice(f"done  {stage.title}, {took}  {result.get('note', '')}".rstrip())
        for name, (stage, _, started) in running.items():
            if name not in self._shown:
                self._shown[name] = time.monotonic()
                self.notice(f"now   {stage.title}")
            elif time.monotonic() - self._shown[name] >= SECONDS_PER_LINE:
                self._shown[name] = time.monotonic()
                progress = _got_on(self.run.read_progress(name))
                self.notice(f"      {stage.title}, {clock(time.monotonic() - started)}  {progress}".rstrip())


class AlarmNews:
    """Alarms of RL that have fired since this object was made."""

    def __init__(self, log: Path) -> None:
        self._log, self._read = log, len(read_alarms(log))
        self._size = -1

    def check(self) -> list[str]:
        """Return new alarms as notices. Reads the file only if it has grown."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size == self._size:
            return []
        self._size = size
        rows = read_alarms(self._log)
        new, self._read = rows[self._read :], len(rows)
        return [f"alarm {row['alarm']} ({row['action']}), step {row['step']}: {row['message']}" for row in new]


def _got_on(progress: Mapping[str, Any]) -> str:
    done, total, note = progress.get("done", 0), progress.get("total", 0), str(progress.get("note", ""))
    return _one_line(f"{done:g}/{total:g}  {note}" if total else note)


def _one_line(text: str) -> str:
    """Return text that may hold words of a policy, such as the name of a tool that it invented, for one line."""
    return visible(text.replace("\n", "⏎"))
