"""The agent's to-do list. It survives self-summaries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session, Todo

from .base import Arguments, Tool, ToolResult

MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}
MAX_TODOS = 50


class TodoItem(Arguments):
    id: str = Field(max_length=50)
    content: str = Field(max_length=500)
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


class TodoWriteArgs(Arguments):
    todos: list[TodoItem] = Field(max_length=MAX_TODOS)
    merge: bool = Field(default=False, description="update by id instead of replacing the list")


class TodoWrite(Tool):
    name = "todo_write"
    Args = TodoWriteArgs

    def description(self) -> str:
        return f"Write your to-do list (at most {MAX_TODOS} items). Use it for work of several steps."

    async def run(self, args: TodoWriteArgs, session: Session) -> ToolResult:
        items = {todo.id: todo for todo in session.todos} if args.merge else {}
        items |= {item.id: Todo(item.id, item.content, item.status) for item in args.todos}
        if len(items) > MAX_TODOS:
            raise ToolError("invalid_arguments", f"a list has at most {MAX_TODOS} items")
        session.todos = list(items.values())
        return ToolResult(render(session.todos) or "[empty list]")


def render(todos: list[Todo]) -> str:
    """One line per item: ``[x] content``."""
    return "\n".join(f"{MARKS[todo.status]} {todo.content}" for todo in todos)
