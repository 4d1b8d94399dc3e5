"""Reward terms for tool discipline (Composer 2 report, 4.2).

Values are at most 0 and bounded, so that no behaviour outweighs a solved task or earns reward. Names of tools are those
of the built-in agent: in the episodes of external programs no call counts as an edit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory

from .seen_files import SeenFiles, path_of
from .shell_lines import only_reads
from .test_runs import suite_failed

EDITS = frozenset({"edit_file", "edit_line", "edit_words", "write_file", "delete_file", "undo"})
_ENDED = re.compile(r"\[(exit code|signal) \d+\]$")
"""End of the output of a command that failed, where the record has no exit code."""


def invalid_call(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 10) -> float:
    """Return -1 for each malformed or rejected call, at most ``most``."""
    return -float(min(trajectory.effort.invalid_calls, most))


def unread_edit(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 5) -> float:
    """Return -1 for each accepted edit of a file whose text the agent had not seen, at most ``most``.

    Seen: read or written before, named in a command that shows text, or quoted with a line number by a search or a
    command (``seen_files``). A listing of names shows no text. ``write_file`` does not count, because it may create a
    new file.
    """
    return -float(min(len(unread_edits(trajectory.events, task)), most))


def unread_edits(events: Sequence[ToolEvent], task: Task) -> list[int]:
    """Return the indices of the events that ``unread_edit`` counts."""
    seen, blind = SeenFiles(task.info.workdir), list[int]()
    for index, event in enumerate(events):
        edited = event.error is None and event.name in ("edit_file", "edit_line", "edit_words")
        if edited and path_of(event, task.info.workdir) not in seen:
            blind.append(index)
        seen.update(event)
    return blind


def repeated_failure(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 5) -> float:
    """Return -1 for each repetition of a failed call with the same arguments and no change since, at most ``most``.

    A command has failed if its exit code says so, a test run also if its summary does. An accepted edit, or a command
    that succeeds and may change something, counts as a change. Rules like this can be evaded: ``touch x`` may, too.
    """
    return -float(min(len(repeated_failures(trajectory.events)), most))


def repeated_failures(events: Sequence[ToolEvent]) -> list[int]:
    """Return the indices of the events that ``repeated_failure`` counts."""
    failed, repeats = set[tuple[str, str]](), list[int]()
    for index, event in enumerate(events):
        call = (event.name, json.dumps(event.arguments, sort_keys=True) if event.arguments else event.raw or "")
        if _failed(event):
            if call in failed:
                repeats.append(index)
            failed.add(call)
        elif event.name in EDITS or (event.name == "run_command" and not only_reads(_command(event))):
            failed.clear()
    return repeats


def _failed(event: ToolEvent) -> bool:
    if event.error is not None or event.exit_code:
        return True
    if event.exit_code is None and _ENDED.search(event.result):
        return True
    return event.name == "run_tests" and suite_failed(event.result)


def _command(event: ToolEvent) -> str:
    return str((event.arguments or {}).get("command", ""))


def unfinished_todos(task: Task, trajectory: Trajectory, outcome: Outcome, *, tool: str = "todo_write") -> float:
    """Return minus the share of to-do items that are open at the end; 0 if the agent keeps no list.

    Arguments of ``tool`` are ``todos`` (objects with ``id`` and ``status``) and ``merge`` (update by id instead of
    replacing). ``completed`` and ``cancelled`` items are closed.
    """
    items: dict[str, str] = {}
    for event in trajectory.events:
        if event.name == tool and event.error is None and event.arguments:
            items = _updated(items, event.arguments)
    if not items:
        return 0.0
    return -sum(status not in ("completed", "cancelled") for status in items.values()) / len(items)


def _updated(items: dict[str, str], arguments: Mapping[str, object]) -> dict[str, str]:
    todos = arguments.get("todos")
    listed = todos if isinstance(todos, list) else []
    new = {str(t.get("id")): str(t.get("status")) for t in listed if isinstance(t, dict)}
    return {**items, **new} if arguments.get("merge") else new
