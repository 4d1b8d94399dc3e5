"""The agent loop: ask the policy, run its calls, send the results, until it is done or a limit is reached.

Training, evaluation and a person's terminal use the same loop. Every call gets exactly one result. Nothing that the
policy or its code does raises an exception; only EndpointLost and SandboxError are raised. If the box dies, the episode
ends: with ``timeout`` if the box is silent, else with ``limit``.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import lru_cache

from woodshed.harness.tools.base import clean
from woodshed.record.trajectory import ExitStatus, ReplyUsage, ToolEvent
from woodshed.sandbox.faults import is_silent
from woodshed.sandbox.protocol import BoxError, Sandbox

from .calls import Runner, calls_of, is_final
from .endpoint import ChatEndpoint, Reply
from .episode import Budget, Episode, Message, Moment, Observer, Reaction
from .errors import FORMAT_ERRORS, ContextFull, EndpointLost, ToolError
from .prompt import continued, opening, summary_text
from .registry import ToolRegistry
from .replay import Replay, ReplayEndpoint
from .session import ReuseTests, Session
from .settings import HarnessSettings


@lru_cache(maxsize=32)
def registry_for(settings: HarnessSettings) -> ToolRegistry:
    """Return the tool registry of these settings, built once."""
    return ToolRegistry(settings.tools, settings)


async def run_episode(
    task_prompt: str,
    box: Sandbox,
    endpoint: ChatEndpoint,
    settings: HarnessSettings,
    *,
    test_command: str = "",
    reuse: ReuseTests | None = None,
    on_event: Observer | None = None,
    replay: Replay | None = None,
) -> Episode:
    """Run the agent on a box until it ends. ``replay``: recorded beginning to repeat first. ``reuse``: returns known
    results of the task's tests. Raises EndpointLost and SandboxError (infrastructure), and with ``replay``
    ReplayDiverged."""
    repeating = None if replay is None else ReplayEndpoint(replay, endpoint)
    agent = _Agent(task_prompt, box, repeating or endpoint, settings, test_command, reuse, on_event)
    try:
        status, reason = await agent.run()
    except ContextFull as error:
        status, reason = "limit", f"context full: {error}"
    except BoxError as error:
        status, reason = "timeout" if is_silent(error) else "limit", f"the box is gone: {error.strerror}"
    await agent.notify(Moment("end", agent.effort.turns, status=status))
    messages = [*agent.past, *agent.messages]
    episode = Episode(status, messages, agent.events, agent.effort, agent.summary_replies, reason, agent.replies)
    return episode if repeating is None else repeating.finish(episode)


class _Agent:
    """The state of one episode and its steps, in the order in which they happen."""

    def __init__(
        self,
        task_prompt: str,
        box: Sandbox,
        endpoint: ChatEndpoint,
        settings: HarnessSettings,
        test_command: str,
        reuse: ReuseTests | None,
        on_event: Observer | None,
    ) -> None:
        self.task_prompt = task_prompt
        self.endpoint = endpoint
        self.settings = settings
        self.on_event = on_event
        self.registry = registry_for(settings)
        self.session = Session(box, settings, test_command, reuse)
        self.effort = self.session.effort
        self.budget = Budget(settings.limits, self.effort)
        self.session.deadline = self.budget.deadline
        self.runner = Runner(self.registry, self.session, self.notify if on_event else None)
        self.messages: list[Message] = list(opening(task_prompt, settings))
        self.past: list[Message] = []
        self.events: list[ToolEvent] = []
        self.replies: list[ReplyUsage] = []
        self.summary_replies: list[int] = []

    async def run(self) -> tuple[ExitStatus, str]:
        """Return the exit status and, unless the agent ended by itself, the reason."""
        bad_turns = 0
        while True:
            over = self.budget.reached()
            if over is not None:
                return over
            if self._wants_summary():
                if not await self._summarize():
                    return "timeout", "wall limit during a summary"
                continue
            reply = await self._ask(self.settings.limits.turn_tokens)
            if reply is None:
                return "timeout", "wall limit during a reply"
            self.effort.turns += 1
            good = await self._act(reply)
            finished, self.session.finished = self.session.finished, False
            said = await self.notify(Moment("final" if finished else "turn", self.effort.turns, reply.message))
            if isinstance(said, str):
                self.messages.append({"role": "user", "content": clean(said)})
            elif finished:
                return "submitted", ""
            bad_turns = 0 if good else bad_turns + 1
            if bad_turns >= self.settings.limits.bad_turns:
                return "repeated_format_error", f"{bad_turns} turns in a row without a well-formed call"

    async def _ask(self, wanted: int, *, summary: bool = False) -> Reply | None:
        """Get the policy's next message, append it and count it; None if the wall limit comes first.

        Time that the endpoint lost by failing does not count against the policy. Raises EndpointLost if the endpoint
        was failing when the time was up.
        """
        if isinstance(self.endpoint, ReplayEndpoint) and self.endpoint.repeated:
            self.budget.set_seconds(self.endpoint.replay.seconds)
        lost, asked = self.endpoint.lost_seconds, self.budget.seconds()
        try:
            async with asyncio.timeout(max(0.0, self.budget.time_left())) as timer:
                max_tokens = self.budget.reply_tokens(wanted)
                reply = await self.endpoint.complete(
                    self.messages, self.registry.schemas(), max_tokens=max_tokens, call_tools=not summary
                )
        except TimeoutError:
            if not timer.expired():
                raise
            if self.endpoint.failing:
                raise EndpointLost(f"it failed until the time was up: {self.endpoint.failing}") from None
            return None
        self.budget.deadline += self.endpoint.lost_seconds - lost
        self.session.deadline = self.budget.deadline
        self.messages.append(reply.message)
        self.replies.append(reply.usage(context=self.effort.summaries, summary=summary, asked_seconds=asked))
        self.budget.count(reply, final=is_final(reply.message))
        if summary:
            self.summary_replies.append(len(self.replies) - 1)
            self.effort.summaries += 1
            self.effort.summary_tokens += reply.sampled_tokens
        await self.notify(Moment("summary" if summary else "reply", self.effort.turns, reply.message))
        return reply

    async def _act(self, reply: Reply) -> bool:
        """Run the calls of a reply. Return False if all of them violated the format."""
        turn = self.effort.turns
        calls = calls_of(reply.message, turn)
        if not calls:
            problem = self._no_call(reply)
            if problem is None:
                self.session.finished = True
                return True
            await self._tell(problem, reply)
            return False
        events = await self.runner.run(calls, turn)
        for call, event in zip(calls, events, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": event.result})
        invalid = sum(event.error in FORMAT_ERRORS for event in events)
        self.events += events
        self.effort.tool_calls += len(events)
        self.effort.invalid_calls += invalid
        if reply.parse_error:
            # The compact format makes a call of what it cannot parse, too; that call was counted above.
            await self._tell(ToolError("malformed_call", reply.parse_error), reply, counted=invalid == len(events) == 1)
        return invalid < len(events)

    def _no_call(self, reply: Reply) -> ToolError | None:
        """Return the error of a reply without a call; None if the reply is the final message."""
        if reply.finish_reason == "length":
            return ToolError("cut_off", "your reply reached the token limit before a complete call; be shorter")
        if reply.parse_error:
            return ToolError("malformed_call", reply.parse_error)
        content = reply.message.get("content")
        if not self.settings.plain_message_ends or not (isinstance(content, str) and content.strip()):
            return ToolError("no_call", "every reply must call a tool")
        self.session.final_message = content
        return None

    async def _tell(self, problem: ToolError, reply: Reply, *, counted: bool = False) -> None:
        """Tell the policy about a problem that belongs to no call: there was none, or one could not be parsed.
        ``counted``: it is already counted as an invalid call."""
        result = self.registry.error(problem)
        content = reply.message.get("content")
        raw = content if isinstance(content, str) else None
        self.events.append(ToolEvent(self.effort.turns, "", None, result.text, result.error, raw))
        self.effort.invalid_calls += not counted
        self.messages.append({"role": "user", "content": result.text})
        await self.notify(Moment("notice", self.effort.turns, self.messages[-1]))

    def _wants_summary(self) -> bool:
        summary = self.settings.summary
        return 0 < summary.trigger_tokens <= self.budget.context and self.effort.summaries < summary.max_count

    async def _summarize(self) -> bool:
        """Replace the context by the policy's own summary of it. Return False if the wall limit comes first."""
        self.messages.append({"role": "user", "content": self.settings.summary.request})
        reply = await self._ask(self.settings.summary.max_tokens, summary=True)
        if reply is None:
            return False
        content = reply.message.get("content")
        text = clean(summary_text(content if isinstance(content, str) else None))
        for call in calls_of(reply.message, self.effort.turns):
            result = self.registry.error(ToolError("not_executed", "a summary was asked for"))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result.text})
            self.events.append(ToolEvent(self.effort.turns, call.name, None, result.text, result.error, call.arguments))
            self.effort.tool_calls += 1
        if not text:
            self.effort.invalid_calls += 1
            text = "(none was written)"
        self.past += self.messages
        self.messages = list(
            continued(self.task_prompt, text, self.effort.summaries, self.session.todos, self.settings)
        )
        self.budget.new_context()
        return True

    async def notify(self, moment: Moment) -> Reaction:
        if self.on_event is None:
            return None
        reaction = self.on_event(moment)
        return await reaction if inspect.isawaitable(reaction) else reaction
