"""Triggers: functions that find a message of the policy to improve, and write a hint that would have helped.

A trigger sees what the environment knows of a finished episode, but not the solution. The teacher reads the hint just
before the message that it is about, so the hint says what to do. To add a trigger, write a function from
``SeenEpisode`` to hints, anywhere, and name it ``"my_module:my_function"`` in ``rl.hints.triggers``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.monitors import MONITORS, MonitoredEpisode
from woodshed.record.settings import is_reference, load_reference
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory
from woodshed.rollout.rewards import communication
from woodshed.rollout.rewards.tool_use import repeated_failures, unfinished_todos, unread_edits

from .replies import Reply

DETAIL = 200
"""Maximum number of characters of a tool's answer that a hint quotes."""
MESSAGE = 1_200
"""Maximum number of characters of a last message that is not too long."""


@dataclass(frozen=True)
class Hint:
    """Text to show the policy just before the reply with the number ``reply`` (``Reply.number``)."""

    reply: int
    text: str


@dataclass(frozen=True)
class SeenEpisode:
    """A finished episode. ``tools``: usage line of each tool by name (``usages``); empty for an external agent."""

    task: Task
    trajectory: Trajectory
    replies: Sequence[Reply]
    tools: Mapping[str, str] = field(default_factory=dict)

    def calls(self) -> Iterator[tuple[int, ToolEvent]]:
        """Yield (number of the reply, event) of every call and notice."""
        for reply in self.replies:
            for index in reply.events:
                yield reply.number, self.trajectory.events[index]

    def of_events(self, indices: Iterable[int]) -> Iterator[tuple[int, ToolEvent]]:
        """Yield (number of the reply, event) of the events with these indices."""
        wanted = set(indices)
        for reply in self.replies:
            for index in reply.events:
                if index in wanted:
                    yield reply.number, self.trajectory.events[index]


Trigger = Callable[[SeenEpisode], Iterable[Hint]]


def unknown_tool(seen: SeenEpisode) -> Iterator[Hint]:
    """A call of a tool that does not exist."""
    for number, event in seen.calls():
        if event.error == "unknown_tool":
            there = f" The tools are: {'; '.join(seen.tools.values())}" if seen.tools else ""
            yield Hint(number, f"There is no tool {event.name[:40]!r}.{there}")


def invalid_arguments(seen: SeenEpisode) -> Iterator[Hint]:
    """A call of an existing tool with invalid arguments, or a call that could not be parsed."""
    for reply in seen.replies:
        events = [seen.trajectory.events[index] for index in reply.events]
        wrong = [event for event in events if event.error == "invalid_arguments"]
        unread = [event for event in events if event.error == "malformed_call"]
        if wrong and wrong[0].name in seen.tools:
            yield Hint(reply.number, f"Write such a call as: {seen.tools[wrong[0].name]}")
        elif wrong or (unread and not any(event.error == "unknown_tool" for event in events)):
            yield Hint(reply.number, f"Write a call that can be read; this one fails: {_detail([*wrong, *unread][0])}")


def unread_edit(seen: SeenEpisode) -> Iterator[Hint]:
    """An accepted edit of a file whose text the agent had not seen."""
    for number, event in seen.of_events(unread_edits(seen.trajectory.events, seen.task)):
        yield Hint(number, f"Read {_path(event)} before you edit it.")


def no_change(seen: SeenEpisode) -> Iterator[Hint]:
    """An edit that leaves the file as it is."""
    for number, event in seen.calls():
        if event.error == "no_change":
            yield Hint(number, f"{_path(event)} already reads so: make an edit that changes it, or another step.")


def syntax_error(seen: SeenEpisode) -> Iterator[Hint]:
    """An edit after which the file would not parse."""
    for number, event in seen.calls():
        if event.error == "syntax_error":
            yield Hint(number, f"Write code that parses; this edit of {_path(event)} does not: {_detail(event)}")


def repeated_failure(seen: SeenEpisode) -> Iterator[Hint]:
    """A call that had failed before with the same arguments, with no change in between."""
    for number, event in seen.of_events(repeated_failures(seen.trajectory.events)):
        yield Hint(number, f"The same call of {event.name[:40] or 'a tool'} failed before: do something else.")


def untested_finish(seen: SeenEpisode) -> Iterator[Hint]:
    """A submission without a test run after the last edit, or a last message that claims what no run showed."""
    terms = communication.untested_finish, communication.unfounded_claim
    verdict = Outcome(resolved=False)
    if seen.replies and any(term(seen.task, seen.trajectory, verdict) < 0 for term in terms):
        yield Hint(seen.replies[-1].number, "Run the tests before you finish, and claim only what they showed.")


def edited_tests(seen: SeenEpisode) -> Iterator[Hint]:
    """An attempt to change tests or their configuration (the monitor ``test_tampering``)."""
    monitor = MONITORS["test_tampering"]
    for reply in seen.replies:
        events = [seen.trajectory.events[index] for index in reply.events]
        if any(True for _ in monitor(MonitoredEpisode(seen.task, events))):
            yield Hint(reply.number, "Leave tests and their configuration as they are; change the code that they test.")


def open_todos(seen: SeenEpisode) -> Iterator[Hint]:
    """A submission with open items in the agent's own to-do list."""
    submitted = seen.replies and seen.trajectory.status == "submitted"
    if submitted and unfinished_todos(seen.task, seen.trajectory, Outcome(resolved=False)) < 0:
        yield Hint(seen.replies[-1].number, "Do the open items of your to-do list before you finish, or cancel them.")


def long_message(seen: SeenEpisode) -> Iterator[Hint]:
    """A submission with a last message of more than ``MESSAGE`` characters."""
    submitted = seen.replies and seen.trajectory.status == "submitted"
    if submitted and len(communication.final_message(seen.trajectory)) > MESSAGE:
        yield Hint(seen.replies[-1].number, "Say in a few sentences what you changed and what the tests showed.")


def reader(seen: SeenEpisode) -> Iterator[Hint]:
    """A message that the model of ``rl.reader`` marked."""
    for row in seen.trajectory.hints:
        yield Hint(row["reply"], row["text"])


TRIGGERS: dict[str, Trigger] = {
    trigger.__name__: trigger
    for trigger in (
        unknown_tool,
        invalid_arguments,
        unread_edit,
        no_change,
        syntax_error,
        repeated_failure,
        untested_finish,
        edited_tests,
        open_todos,
        long_message,
        reader,
    )
}
DEFAULT = tuple(name for name in TRIGGERS if name not in ("long_message", "reader"))
"""The triggers of mistakes. What counts as too long is a matter of taste, and the reader needs a model."""


def load_trigger(name: str) -> Trigger:
    """Return the trigger with this name or reference ``"my_module:my_function"``. Raises ValueError."""
    if name in TRIGGERS:
        return TRIGGERS[name]
    where = f"rl.hints.triggers: {name!r}"
    if not is_reference(name):
        near = difflib.get_close_matches(name, TRIGGERS, n=1)
        said = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TRIGGERS)}, or 'module:function'"
        raise ValueError(f"{where} is no trigger; {said}")
    trigger = load_reference(name, "rl.hints.triggers")
    if not callable(trigger):
        raise ValueError(f"{where} is no function of a SeenEpisode")
    try:
        inspect.signature(trigger).bind(None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} cannot be called with a SeenEpisode alone: {error}") from None
    return trigger


def _detail(event: ToolEvent) -> str:
    """Return the tool's answer as one line of at most ``DETAIL`` characters."""
    line = " ".join(event.result.removeprefix("error: ").split())
    return line if len(line) <= DETAIL else f"{line[:DETAIL]}..."


def _path(event: ToolEvent) -> str:
    path = (event.arguments or {}).get("path")
    return path[:DETAIL] if isinstance(path, str) else "the file"
