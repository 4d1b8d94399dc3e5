"""Continue a recorded episode: its first replies are repeated from the record, then the policy is asked.

Every call of a repeated reply runs again in the new box, so files, undo stack, to-do list and budgets are those of the
recorded episode, with any sandbox backend. Every result must equal the recorded one, except for durations and memory
addresses; the policy then sees the recorded text, so the tokens of the common beginning are equal.

Repeating has a wall limit of its own. The part after it gets the time that the recorded episode had left there, so an
episode neither gains time that the recorded one had used, nor loses the time that repeating takes on this machine.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from woodshed.gateway.messages import steady
from woodshed.record.fault import Fault, FaultSource
from woodshed.record.trajectory import ReplyUsage

from .endpoint import ChatEndpoint, Reply
from .episode import Episode, Message


class ReplayDiverged(Fault):
    """The new box did not repeat the recorded beginning."""

    source: ClassVar[FaultSource] = "replay"


@dataclass(frozen=True)
class Replay:
    """The recorded beginning of an episode. ``messages``: messages of all contexts in order, up to the results of the
    last of ``replies``. ``seconds``: time of the wall limit that was spent by then."""

    messages: Sequence[Message]
    replies: Sequence[ReplyUsage]
    seconds: float


class ReplayEndpoint:
    """Answers the first requests of an episode from ``replay`` and all others by ``endpoint``."""

    def __init__(self, replay: Replay, endpoint: ChatEndpoint) -> None:
        self.replay, self.endpoint = replay, endpoint
        self.live = False
        """True once ``endpoint`` was asked."""
        places = [i for i, message in enumerate(replay.messages) if message["role"] == "assistant"]
        if len(places) != len(replay.replies):
            raise ValueError(f"replay: {len(places)} assistant messages and {len(replay.replies)} replies")
        self._places = [*places, len(replay.messages)]
        self._given = 0
        self._prefix: Sequence[Message] = ()
        self._last: Message | None = None

    @property
    def repeated(self) -> bool:
        """True if the next reply is the first new one."""
        return not self.live and self._given == len(self.replay.replies)

    @property
    def lost_seconds(self) -> float:
        return self.endpoint.lost_seconds

    @property
    def failing(self) -> str:
        return self.endpoint.failing

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        """Return the next reply. Raises ReplayDiverged if ``messages`` are not the recorded ones, and what ``endpoint``
        raises."""
        if not self.live:
            recorded = self._recorded(messages)
            if self._given < len(self.replay.replies):
                usage = self.replay.replies[self._given]
                message = copy.deepcopy(self.replay.messages[self._places[self._given]])
                self._given += 1
                return Reply(
                    message=message,
                    finish_reason=usage.finish_reason,
                    prompt_tokens=usage.prompt_tokens,
                    sampled_tokens=usage.sampled_tokens,
                    thinking_tokens=usage.thinking_tokens,
                    parse_error=usage.parse_error,
                )
            self.live, self._prefix, self._last = True, recorded, messages[-1]
        known = len(self._prefix)
        if len(messages) >= known and messages[known - 1] is self._last:  # else a summary has started a new context
            messages = [*self._prefix, *messages[known:]]
        return await self.endpoint.complete(messages, tools, max_tokens=max_tokens, call_tools=call_tools)

    def finish(self, episode: Episode) -> Episode:
        """Return ``episode`` with the recorded messages and replies at its beginning. Raises ReplayDiverged if it ended
        before the first new reply."""
        if not self.live:
            raise ReplayDiverged(f"the episode ended with {episode.status} at reply {self._given}: {episode.error}")
        recorded, replies = self.replay.messages, self.replay.replies
        return replace(
            episode,
            messages=[*recorded, *episode.messages[len(recorded) :]],
            replies=[*replies, *episode.replies[len(replies) :]],
        )

    def _recorded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the recorded messages of the current context. Raises ReplayDiverged if ``messages`` differ."""
        end = self._places[self._given]
        recorded = self.replay.messages[max(0, end - len(messages)) : end]
        if len(recorded) != len(messages):
            raise ReplayDiverged(f"reply {self._given + 1}: {len(messages)} messages, {len(recorded)} were recorded")
        for ours, theirs in zip(messages, recorded):
            if steady(ours) != steady(theirs):
                text = f"{theirs.get('content')!r:.200} became {ours.get('content')!r:.200}"
                raise ReplayDiverged(f"before reply {self._given + 1} a {theirs['role']} message changed: {text}")
        return recorded
