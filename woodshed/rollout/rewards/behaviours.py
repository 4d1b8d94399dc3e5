"""Small named reward terms for how an agent works, besides whether it succeeds (Composer 2 report, 4.2).

Each is at most 0 and bounded, so that no behaviour outweighs a solved task and none can be farmed.
"""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.trajectory import Effort, ToolEvent


def invalid_calls(effort: Effort, *, weight: float = 0.02, most: int = 10) -> float:
    """-weight for each malformed or rejected call, counting at most ``most`` of them."""
    return -weight * min(effort.invalid_calls, most)


def unfinished_todos(events: Sequence[ToolEvent], *, tool: str = "todo_write", weight: float = 0.05) -> float:
    """-weight times the share of to-do items open at the end, following the accepted calls of ``tool``.

    Its arguments are ``todos`` (objects with ``id`` and ``status``) and ``merge`` (update by id instead of replacing).
    ``completed`` and ``cancelled`` items are closed. 0 for an agent that keeps no list: that is no worse behaviour.
    """
    items: dict[str, str] = {}
    for event in events:
        if event.name == tool and event.error is None and event.arguments:
            todos = event.arguments.get("todos")
            listed = todos if isinstance(todos, list) else []
            new = {str(t.get("id")): str(t.get("status")) for t in listed if isinstance(t, dict)}
            items = {**items, **new} if event.arguments.get("merge") else new
    if not items:
        return 0.0
    return -weight * sum(status not in ("completed", "cancelled") for status in items.values()) / len(items)
