"""Chat endpoint that plays a script in the policy's place, and writes summaries when the context becomes too long."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from woodshed.harness.endpoint import Reply
from woodshed.harness.episode import Message
from woodshed.rollout.rewards.test_runs import suite_passed

from .demonstrator import Action, Script

Count = Callable[[Sequence[Message], Sequence[dict[str, Any]]], int]
"""Returns the number of tokens of messages and tools, including the generation prompt of the next reply unless the last
message is a reply."""

SUMMARY = "Your summary of the work so far:\n"
"""Text before the summary in the first message of the next context (``harness/prompt.py``)."""


PLAN = "\nnext edit "
"""A summary with a plan ends with this text and the next edit, written like the edit's call."""


class ScriptedEndpoint:
    """A chat endpoint whose replies come from a script.

    ``count`` gives replies the token counts of a real server; without it they are 0, and no summary is ever requested.
    To a request for a summary (the text ``request``) the reply is ``scripted_summary``, followed by the next edit if
    ``plans()`` is true. After a summary without a plan, the first call repeats the script's last ``read_file``.
    """

    def __init__(
        self,
        script: Script,
        *,
        request: str = "",
        count: Count | None = None,
        plans: Callable[[], bool] = lambda: False,
    ):
        self._script = script
        self._request = request
        self._count = count
        self._plans = plans
        self._ahead: Action | None = None
        """Next action, taken from the script for a plan and not called yet."""
        self._planned = False
        self._turn = 0
        self._pending: str | None = None
        """Result that arrived before a summary and was not sent to the script yet."""
        self._action: Action | None = None
        self._last_read: Action | None = None
        self.weights: list[float] = []
        """Loss weight of each reply."""
        self.lost_seconds, self.failing = 0.0, ""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        last = str(messages[-1].get("content") or "")
        if not call_tools and last == self._request:
            if self._pending is None:  # else the context was full again before the script went on
                self._pending = str(messages[-2].get("content") or "")
            if self._ahead is None and self._action is not None and self._plans():
                self._ahead = self._next(self._pending)
            plan = "" if self._ahead is None else _plan(self._ahead.arguments)
            self._planned = bool(plan)
            self.weights.append(self._ahead.weight if self._ahead is not None and plan else 1.0)
            text = "\n".join(filter(None, (scripted_summary(messages[:-1]), plan)))
            return self._reply(messages, tools, {"role": "assistant", "content": text}, "stop")
        again = None if self._planned else self._last_read
        if self._pending is not None and len(messages) <= 2 and again is not None:
            return self._reply(messages, tools, self._call(again), "tool_calls")
        if self._pending is not None:
            # if the last call was this read, the result of the repeated read is newer
            reread = again is not None and self._action is again
            last, self._pending = (last if reread else self._pending), None
        action, self._ahead = self._ahead or self._next(last), None
        if action is None:
            self.weights.append(1.0)
            return self._reply(messages, tools, {"role": "assistant", "content": "done"}, "stop")
        self._action = action
        if action.name == "read_file" and action.weight:
            self._last_read = action
        return self._reply(messages, tools, self._call(action), "tool_calls")

    def _next(self, result: str | None) -> Action | None:
        """Send ``result`` to the script and return its next action; None at its end."""
        try:
            return next(self._script) if self._action is None else self._script.send(result or "")
        except StopIteration:
            return None

    def _call(self, action: Action) -> Message:
        self._turn += 1
        self.weights.append(action.weight)
        function = {"name": action.name, "arguments": json.dumps(action.arguments)}
        call = {"id": f"c{self._turn}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _reply(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], message: Message, finish: str
    ) -> Reply:
        if self._count is None:
            return Reply(message, finish)
        prompt = self._count(messages, tools)
        return Reply(message, finish, prompt, self._count([*messages, message], tools) - prompt)


def scripted_summary(messages: Sequence[Message]) -> str:
    """Return a summary of one context: the files read, each tried edit with its outcome, and the last test result.

    ``messages``: those of the context, whose first user message may hold an earlier summary. The lines of the earlier
    summary are kept, without its test result and plan.
    """
    given = next(str(m.get("content") or "") for m in messages if m["role"] == "user")
    earlier = given.partition(SUMMARY)[2].partition(PLAN)[0]
    lines = [line for line in earlier.split("\n") if line and not line.startswith("tests ")]
    tests = next((line for line in earlier.split("\n") if line.startswith("tests ")), "tests not run")
    calls = {c["id"]: c["function"] for m in messages for c in m.get("tool_calls") or ()}
    for message in messages:
        function = calls.get(message.get("tool_call_id", ""))
        if function is None:
            continue
        name, arguments, result = function["name"], json.loads(function["arguments"]), str(message.get("content") or "")
        if name == "run_tests":
            tests = "tests pass" if suite_passed(result) else "tests fail"
            if lines and lines[-1].startswith("tried ") and not lines[-1].endswith((" pass", " fail", " rejected")):
                lines[-1] += tests.removeprefix("tests")
        elif (tried := _tried(arguments)) is not None:
            lines.append(f"tried {tried}" + (" rejected" if result.startswith("error") else ""))
        elif name == "undo":
            lines.append("undone")
        elif name == "read_file" and not result.startswith("error"):
            file = f"file {arguments.get('path')}"
            if file not in lines:
                lines.append(file)
    return "\n".join([*lines, tests])


def _plan(arguments: dict[str, Any]) -> str:
    """Return the plan for the next edit, written like its call; '' for other calls."""
    if "text" not in arguments:
        return ""
    return PLAN.lstrip("\n") + f"{arguments['path']}\n{arguments['line']}{arguments['text']}"


def _tried(arguments: dict[str, Any]) -> str | None:
    """Return the line number (if any) and the new text of an edit; None for other calls."""
    if "text" in arguments:
        return f"line {arguments.get('line')}: {str(arguments['text']).strip()}"
    if "new_string" in arguments:
        return re.sub(r"\s+", " ", str(arguments["new_string"]).strip())[:200]
    return None


def contexts(
    messages: Sequence[Message], weights: Sequence[float], request: str
) -> list[tuple[list[Message], list[float]]]:
    """Split an episode into its contexts: the messages of each, and the loss weights of its replies. A context ends
    with the reply to ``request``."""
    found: list[tuple[list[Message], list[float]]] = [([], [])]
    each = iter(weights)
    asked = False
    for message in messages:
        if asked and found[-1][0][-1]["role"] == "assistant":
            found.append(([], []))
            asked = False
        found[-1][0].append(message)
        if message["role"] == "assistant":
            found[-1][1].append(next(each))
        elif message["role"] == "user":
            asked = bool(request) and message.get("content") == request
    return found
