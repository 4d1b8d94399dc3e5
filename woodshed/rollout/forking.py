"""Forks: rollouts that continue another rollout, their parent, from the state after one of its turns.

The parent's first turns are repeated in a new box from the record (``harness/replay.py``), so nothing has to be kept
running for a fork, and a stored trajectory can be forked at any time. The fork's first segment begins with the parent's
tokens as context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from woodshed.gateway.beginning import Beginning
from woodshed.gateway.rendering import Tools
from woodshed.harness.replay import Replay, ReplayDiverged
from woodshed.record.segment import Segment, Span
from woodshed.record.trajectory import Fork, Trajectory

from .attempts import attempt_events
from .rewards.test_runs import suite_passed

FORK_OF = "fork_of"
"""Label of a fork: the id of its parent."""


class ForkError(ValueError):
    """The trajectory cannot be forked there; the message says why."""


@dataclass(frozen=True)
class ForkPoint:
    """The state of ``parent`` after the calls of its reply number ``fork.replies``."""

    parent: Trajectory
    fork: Fork

    @property
    def replay(self) -> Replay:
        """The recorded beginning that the harness repeats."""
        count, replies = self.fork.replies, self.parent.replies
        messages = self.parent.messages[: _places(self.parent)[count]]
        return Replay(messages, replies[:count], seconds=replies[count].asked_seconds)

    def beginning(self, tools: Tools) -> Beginning:
        """Return the beginning of the gateway's record of the fork: the parent's context up to the end of the last
        repeated reply. ``tools``: tool schemas that the agent sends."""
        segment = self.parent.segments[self.fork.segment]
        last = self.parent.replies[self.fork.replies - 1]
        end = last.prompt_tokens + last.sampled_tokens
        spans = [Span(s.start, min(s.end, end), s.role, s.message) for s in segment.spans if s.start < end]
        place = _places(self.parent)[self.fork.replies - 1]
        messages = self.parent.messages[place - spans[-1].message : place + 1]
        return Beginning(messages, tools, segment.tokens[:end].tolist(), spans)

    def joined(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the fork's recorded segments, with the parent's expert routes for shared tokens that lack their own.

        The fork's engine computed the shared tokens again, perhaps by newer weights, and sampled from what it computed.
        Raises ReplayDiverged if they do not begin with the parent's tokens, or if nothing was sampled after these.
        """
        shared, theirs = self.fork.tokens, self.parent.segments[self.fork.segment]
        if not segments or not any(segment.sampled.any() for segment in segments):
            raise ReplayDiverged("the fork ended before a reply was sampled")
        first = segments[0]
        same = np.array_equal(first.tokens[:shared], theirs.tokens[:shared])
        if not same or not first.sampled[shared] or first.sampled[:shared].any():
            raise ReplayDiverged(f"the fork does not begin with the first {shared} tokens of {self.parent.id}")
        if theirs.routes is None or first.routes is None:
            return list(segments)
        routes = first.routes.copy()
        routes[:shared] = np.where(routes[:shared] >= 0, routes[:shared], theirs.routes[:shared])
        return [replace(first, routes=routes), *segments[1:]]


def fork_point(parent: Trajectory, replies: int) -> ForkPoint:
    """Return the state of ``parent`` after its first ``replies`` replies and their calls. Raises ForkError."""
    if not 0 < replies < len(parent.replies):
        raise ForkError(f"{parent.id} has {len(parent.replies)} replies; a fork repeats at least one and not the last")
    last, following = parent.replies[replies - 1], parent.replies[replies]
    if last.context != following.context:
        raise ForkError(f"{parent.id}: a new context starts after reply {replies}")
    contexts = parent.replies[-1].context + 1
    if len(parent.segments) != contexts or len(_places(parent)) != len(parent.replies):
        raise ForkError(f"{parent.id}: its {len(parent.segments)} segments are not the contexts of its conversation")
    sampled = parent.segments[last.context].sampled
    start, end = last.prompt_tokens, last.prompt_tokens + last.sampled_tokens
    if not sampled[start:end].all() or sampled[end : following.prompt_tokens].any():
        raise ForkError(f"{parent.id}: the policy server's token counts are not those of the record")
    return ForkPoint(parent, Fork(parent.id, replies, last.context, following.prompt_tokens))


def failed_tests(trajectory: Trajectory) -> list[int]:
    """Return the numbers (from 1) of replies whose test run failed after an accepted edit, without the last reply."""
    turns = [number for number, reply in enumerate(trajectory.replies, 1) if not reply.summary]
    failed = {event.turn for event in attempt_events(trajectory.events) if not suite_passed(event.result)}
    return [number for turn, number in enumerate(turns, 1) if turn in failed and number < len(trajectory.replies)]


def _places(trajectory: Trajectory) -> list[int]:
    """Return the indices of the replies among the messages."""
    return [i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
