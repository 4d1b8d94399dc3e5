"""Tool discipline (Composer 2 report, 4.2): each term counts something that a careful engineer does not do.

Values are at most 0 and bounded, so that no behaviour outweighs a solved task and none can be farmed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory

EDITS = frozenset({"edit_file", "edit_line", "write_file", "undo"})
COMMANDS = frozenset({"run_command", "run_tests"})


def invalid_call(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 10) -> float:
    """-1 for each malformed or rejected call, counting at most ``most``."""
    return -float(min(trajectory.effort.invalid_calls, most))


def unread_edit(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 5) -> float:
    """-1 for each accepted edit of a file that nothing had shown before, counting at most ``most``.

    A file counts as shown once it was read, written, or named by a search's result or by a command and its output.
    ``write_file`` is free: it may make a new file.
    """
    shown, blind = set[str](), 0
    seen: list[str] = []
    for event in trajectory.events:
        arguments = event.arguments or {}
        path = _path(arguments)
        if event.error is None and event.name in ("edit_file", "edit_line"):
            blind += path not in shown and not any(path in text for text in seen)
        if event.error is None and path:
            shown.add(path)
        if event.name not in EDITS:
            seen.append(event.result)
            seen.append(str(arguments.get("command", "")))
    return -float(min(blind, most))


def repeated_failure(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 5) -> float:
    """-1 for each call that failed before with the same arguments and nothing changed between, at most ``most``."""
    failed, repeats = set[tuple[str, str]](), 0
    for event in trajectory.events:
        call = (event.name, json.dumps(event.arguments, sort_keys=True) if event.arguments else event.raw or "")
        if event.error is not None:
            repeats += call in failed
            failed.add(call)
        elif event.name in EDITS or event.name in COMMANDS:
            failed.clear()  # the workspace may be another now, so trying again makes sense
    return -float(min(repeats, most))


def unfinished_todos(task: Task, trajectory: Trajectory, outcome: Outcome, *, tool: str = "todo_write") -> float:
    """Minus the share of to-do items that are open at the end; 0 for an agent that keeps no list.

    Arguments of ``tool`` are ``todos`` (objects with ``id`` and ``status``) and ``merge`` (update by id instead of
    replacing). ``completed`` and ``cancelled`` items are closed.
    """
    items = _todos(trajectory.events, tool)
    if not items:
        return 0.0
    return -sum(status not in ("completed", "cancelled") for status in items.values()) / len(items)


def _todos(events: Sequence[ToolEvent], tool: str) -> dict[str, str]:
    items: dict[str, str] = {}
    for event in events:
        if event.name == tool and event.error is None and event.arguments:
            todos = event.arguments.get("todos")
            listed = todos if isinstance(todos, list) else []
            new = {str(t.get("id")): str(t.get("status")) for t in listed if isinstance(t, dict)}
            items = {**items, **new} if event.arguments.get("merge") else new
    return items


def _path(arguments: dict[str, object]) -> str:
    path = arguments.get("path")
    return path.removeprefix("./").removeprefix("/workspace/") if isinstance(path, str) else ""
