"""What a person sees while a recipe runs: stages, progress, and what the agent just did."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .directory import RunDirectory
from .stages import Stage


class Screen:
    def __init__(self, run: RunDirectory, stages: list[Stage]):
        self.run, self.stages = run, stages
        self.notices: deque[str] = deque(maxlen=4)

    def notice(self, text: str) -> None:
        self.notices.append(f"{time.strftime('%H:%M:%S')} {text}")

    def render(self, running: Mapping[str, tuple[Stage, Any, float]], finished: Iterable[str]) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        finished = set(finished)
        for stage in self.stages:
            if stage.name in finished:
                result = self.run.stage_result(stage.name) or {}
                table.add_row(
                    "[green]done[/]", stage.title, _clock(result.get("seconds", 0.0)), Text(str(result.get("note", "")))
                )
            elif stage.name in running:
                progress = self.run.read_progress(stage.name)
                done, total = progress.get("done", 0), progress.get("total", 0)
                bar = ProgressBar(total=total or None, completed=done, width=24, pulse=not total)
                note = Text(f"{done:g}/{total:g}  {progress.get('note', '')}" if total else progress.get("note", ""))
                elapsed = _clock(time.time() - running[stage.name][2])
                table.add_row("[cyan]now[/]", stage.title, elapsed, Group(bar, note))
            else:
                table.add_row("[dim]-[/]", f"[dim]{stage.title}[/]", "", "")
        return Group(table, *(Text(n, style="yellow") for n in self.notices))


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
