"""Self-summarisation (Composer 2 report, section 4.1): the policy condenses its own context and continues from it.

The request is a short user message appended to the live context, so the engine's cache is reused. The next context is
system, task, a state block (number of summaries, to-do list) and the summary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from woodshed.harness.tools.todo_write import render

from .prompt import opening
from .session import Todo
from .settings import HarnessSettings

REQUEST = (
    "Summarize our conversation so far, so that you can continue from the summary alone: the goal, what was done, what "
    "was learned, what is still broken, what to do next, the files that matter. Do not call a tool."
)

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def summary_text(content: str | None) -> str:
    """The summary without thinking that the server left in the content."""
    return _THINKING.sub("", content or "").strip()


def state_block(summaries: int, todos: Sequence[Todo]) -> str:
    """What the harness itself knows and carries over."""
    lines = [f"Summaries so far: {summaries}"]
    if todos:
        lines += ["To-do list:", render(list(todos))]
    return "\n".join(lines)


def continued(
    task_prompt: str, summary: str, summaries: int, todos: Sequence[Todo], settings: HarnessSettings
) -> list[dict[str, str]]:
    """The messages that the next context starts with. ``summaries`` counts this one."""
    parts = [task_prompt, state_block(summaries, todos), f"Your summary of the work so far:\n{summary}"]
    return opening("\n\n".join(parts), settings)
