"""The replies of an episode, each with its tool calls and its recorded tokens.

A trajectory holds the conversation, the tool events and the recorded segments separately. All three are in
chronological order, so walking through them together matches them; if they do not fit, ``Unplaced`` is raised instead
of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from woodshed.harness.tools.base import clean
from woodshed.record.segment import Segment
from woodshed.record.trajectory import ToolEvent, Trajectory


class Unplaced(ValueError):
    """The conversation, the events and the segments of a trajectory do not fit together."""


@dataclass(frozen=True)
class Reply:
    """One message of the policy. ``number``: its index among the replies, from 0. ``events``: indices into the
    trajectory's events: of the reply's calls, and of the harness's notice about the reply if there was one."""

    number: int
    message: Mapping[str, Any]
    events: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Position of a reply's tokens in segment ``segment``. The message, including the header of the policy's turn,
    starts at ``begin``; the tokens ``[start, end)`` were sampled."""

    segment: int
    begin: int
    start: int
    end: int


def replies_of(trajectory: Trajectory) -> list[Reply]:
    """Return the policy's messages in order, including summaries. Raises Unplaced if events and calls do not match."""
    messages, events = trajectory.messages, trajectory.events
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1)
    found: list[Reply] = []
    at = 0
    for i, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        names = _called(message)
        if i == last and at + len(names) > len(events):
            names = []  # the box died before its calls had results
        own = events[at : at + len(names)]
        if [clean(event.name) for event in own] != names:
            raise Unplaced(f"reply {len(found)} calls {names}, and the events are of {[e.name for e in own]}")
        end = at + len(names)
        end += _is_notice(events[end : end + 1], messages[i + 1 + len(names) :][:1])
        found.append(Reply(len(found), message, tuple(range(at, end))))
        at = end
    if at != len(events):
        raise Unplaced(f"{len(events) - at} events belong to no reply")
    return found


def repeated(trajectory: Trajectory) -> int:
    """Return how many of the first ``replies_of`` a fork repeats from its parent, which alone sampled them; else 0."""
    return 0 if trajectory.fork is None else trajectory.fork.replies


def places_of(trajectory: Trajectory) -> list[Place]:
    """Return the place of each of ``replies_of`` that is not ``repeated``. Raises Unplaced if sampled tokens and
    replies do not match.

    One more reply may have been sampled at the end, if the episode was over before it arrived; it is left out.
    """
    found = [place for number, segment in enumerate(trajectory.segments) for place in _sampled(number, segment)]
    count = sum(message.get("role") == "assistant" for message in trajectory.messages) - repeated(trajectory)
    if len(found) - count not in (0, 1):
        raise Unplaced(f"{len(found)} messages were sampled, and the conversation has {count} replies of its own")
    return found[:count]


def _sampled(number: int, segment: Segment) -> list[Place]:
    found = []
    for span in segment.spans:
        (at,) = np.nonzero(segment.sampled[span.start : span.end])
        if not len(at):
            continue
        start, end = span.start + int(at[0]), span.start + int(at[-1]) + 1
        if span.role != "assistant" or not segment.sampled[start:end].all() or start == 0:
            raise Unplaced(f"segment {number}: tokens {start} to {end} are no message of the policy")
        found.append(Place(number, span.start, start, end))
    return found


def _called(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [clean(str((f.get("name") if isinstance(f, dict) else "") or "")) for f in functions]


def _is_notice(event: list[ToolEvent], message: list[dict[str, Any]]) -> bool:
    """Return whether ``event`` is a notice of the harness about the reply itself, shown in the message after it.

    ``event``, ``message``: the next event and the next message, or an empty list.
    """
    if not event or not message or event[0].name:
        return False
    return message[0].get("role") == "user" and message[0].get("content") == event[0].result
