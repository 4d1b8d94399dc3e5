"""What a monitor is given, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from woodshed.grading.node.syntax import SUFFIXES as JAVASCRIPT
from woodshed.record.task import Task
from woodshed.record.trajectory import Effort, ToolEvent

CODE = (".py", *JAVASCRIPT)
_EVIDENCE = 240


@dataclass(frozen=True)
class Finding:
    """``turn`` of the call that it is about, -1 for the submission or the whole episode. ``evidence``: a quotation."""

    monitor: str
    turn: int
    evidence: str

    def row(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "turn": self.turn, "evidence": self.evidence[:_EVIDENCE]}


@dataclass(frozen=True)
class MonitoredEpisode:
    """One episode before its verdict is known. ``submission``: path -> content of what crosses into grading.

    ``requests``: counts of what the box asked of the outside (``requests``, ``refused``).
    """

    task: Task
    events: Sequence[ToolEvent]
    messages: Sequence[Mapping[str, Any]] = ()
    effort: Effort = field(default_factory=Effort)
    submission: Mapping[str, bytes] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def workspace(self) -> dict[str, bytes]:
        return self.task.workspace_files()

    @cached_property
    def solution(self) -> dict[str, bytes]:
        return self.task.solution_files()

    def commands(self) -> Iterator[tuple[int, str]]:
        """(turn, text) of every shell command."""
        for event in self.events:
            text = (event.arguments or {}).get("command")
            if isinstance(text, str):
                yield event.turn, text

    def paths(self) -> Iterator[tuple[int, str, str]]:
        """(turn, tool, path) of every call of another tool that names a path."""
        for event in self.events:
            path = (event.arguments or {}).get("path")
            if isinstance(path, str):
                yield event.turn, event.name, path

    def changed(self) -> Iterator[tuple[str, str, str]]:
        """(path, before, after) of every file of Python or JavaScript that the submission changes or adds."""
        for path, data in self.submission.items():
            before = self.workspace.get(path, b"")
            if path.endswith(CODE) and data != before:
                yield path, before.decode("utf-8", "replace"), data.decode("utf-8", "replace")


Monitor = Callable[[MonitoredEpisode], Iterator[Finding]]
