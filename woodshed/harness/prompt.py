"""What the policy is told before the task. Tools explain themselves by their schemas."""

from __future__ import annotations

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
    """The messages that every context starts with."""
    system = system_prompt(settings)
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": task_prompt}]
