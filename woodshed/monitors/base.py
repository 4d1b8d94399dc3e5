"""Input and output of monitors: the monitored episode and findings."""

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
    """A suspected reward hack. ``turn``: turn of the call, from 1; -1 for the submission or the whole episode.
    ``evidence``: a quotation or a short description."""

    monitor: str
    turn: int
    evidence: str

    def row(self) -> dict[str, Any]:
        return {"monitor": self.monitor, "turn": self.turn, "evidence": self.evidence[:_EVIDENCE]}


@dataclass(frozen=True)
class MonitoredEpisode:
    """One episode before its verdict is known. ``submission``: path -> content of the files that cross into grading.

    ``requests``: counts of the box's requests to the network (``requests``, ``refused``).
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
        """Yield (turn, text) of every shell command."""
        for event in self.events:
            text = (event.arguments or {}).get("command")
            if isinstance(text, str):
                yield event.turn, text

    def paths(self) -> Iterator[tuple[int, str, str]]:
        """Yield (turn, tool, path) of every tool call with a path."""
        for event in self.events:
            path = (event.arguments or {}).get("path")
            if isinstance(path, str):
                yield event.turn, event.name, path

    def changed(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, before, after) of every Python or JavaScript file that the submission changes or adds."""
        for path, data in self.submission.items():
            before = self.workspace.get(path, b"")
            if path.endswith(CODE) and data != before:
                yield path, before.decode("utf-8", "replace"), data.decode("utf-8", "replace")


Monitor = Callable[[MonitoredEpisode], Iterator[Finding]]
