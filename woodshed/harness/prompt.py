"""The prompts of the agent: the system message, and those of self-summarisation. Tools are described by their schemas.

Self-summarisation (Composer 2 report, section 4.1): the policy condenses its own context and continues from the
summary. The request is a short user message appended to the live context, so the engine's cache is reused. The next
context is the system message, the task, a state block (number of summaries, to-do list) and the summary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from woodshed.harness.tools.todo_write import render

from .session import Todo
from .settings import HarnessSettings

DEFAULT = """\
You are a coding agent. You work on the files in {workdir} with the tools you are given.

- Look before you change: read the code that matters and find out how it is tested.
- Make the smallest change that does what was asked, in the style of the code around it.
- Check your work by running tests or the program. Never change tests to make them pass.
- Calls that do not depend on each other can be made in one turn.
- When you are done, {ending}
"""


def system_prompt(settings: HarnessSettings) -> str:
    """The system message; empty for none."""
    if settings.system_prompt is not None:
        return settings.system_prompt
    ways = []
    if "finish" in settings.tools:
        ways.append("call finish")
    if settings.plain_message_ends:
        ways.append("answer with a short message and no call")
    return DEFAULT.format(workdir=settings.workdir, ending=" or ".join(ways) + ".")


def opening(task_prompt: str, settings: HarnessSettings) -> list[dict[str, str]]:
    """The messages at the start of every context."""
    system = system_prompt(settings)
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": task_prompt}]


_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def summary_text(content: str | None) -> str:
    """Return the summary without thinking that the server left in the content."""
    return _THINKING.sub("", content or "").strip()


def state_block(summaries: int, todos: Sequence[Todo]) -> str:
    """Return the state that the harness carries over into the next context, as text."""
    lines = [f"Summaries so far: {summaries}"]
    if todos:
        lines += ["To-do list:", render(list(todos))]
    return "\n".join(lines)


def continued(
    task_prompt: str, summary: str, summaries: int, todos: Sequence[Todo], settings: HarnessSettings
) -> list[dict[str, str]]:
    """Return the messages at the start of the next context. ``summaries``: number of summaries, this one included."""
    parts = [task_prompt, state_block(summaries, todos), f"Your summary of the work so far:\n{summary}"]
    return opening("\n\n".join(parts), settings)
