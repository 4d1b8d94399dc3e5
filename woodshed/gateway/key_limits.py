"""What one key may use, and how it is sampled whatever its client asks for: others' programs keep no limit of ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import Field

from woodshed.engine.protocol import OnToken, Sampling
from woodshed.record.settings import Settings

from .errors import ApiError, ContextTooLong

LIMIT_REACHED = "limit_reached"
"""Code of the refusal (403, which clients do not send again)."""

MAX_AT_ONCE = 64
"""Requests of one key at the same time."""


@dataclass(frozen=True)
class TurnUsage:
    """One answered request. ``segment``: index of the segment that it extended; ``calls``: tool calls of the reply.

    ``parse_error`` is set where the policy tried a call that could not be read.
    """

    segment: int
    prompt_tokens: int
    sampled_tokens: int
    thinking_tokens: int
    calls: int
    parse_error: str = ""
    asked: str = ""
    """``Request.sampling_digest`` of the request; empty where it is not known."""


class Used(NamedTuple):
    """What counts against terms. ``held``: tokens that running requests may still take."""

    turns: int = 0
    sampled_tokens: int = 0
    held: int = 0


class Tally:
    """Counts the tokens that are sampled for one request, and passes them on."""

    def __init__(self) -> None:
        self.tokens = 0
        self.then: OnToken | None = None

    def on_token(self, token: int, logprob: float, version: int) -> bool | None:
        """Called in the engine's thread."""
        self.tokens += 1
        return None if self.then is None else self.then(token, logprob, version)


class KeyLimits(Settings):
    """The terms of one key. 0 is no limit."""

    turns: int = Field(default=0, ge=0)
    """Most replies."""
    sampled_tokens: int = Field(default=0, ge=0)
    """Most sampled tokens in all."""
    turn_tokens: int = Field(default=0, ge=0)
    """Most sampled tokens of one reply."""
    context_tokens: int = Field(default=0, ge=0)
    """Most tokens of one context, prompt and reply."""
    temperature: float | None = Field(default=None, ge=0)
    """Sample at this temperature and from the whole distribution, whatever the client asks for."""
    seed: int | None = None
    """Sample with this seed, whatever the client asks for."""
    feedback: bool = True
    """Whether the client may send feedback. Where a policy's own code has the key, it would praise itself."""

    @property
    def bounded(self) -> bool:
        """Whether anything is used up."""
        return bool(self.turns or self.sampled_tokens)

    def check(self, used: Used, running: int) -> None:
        """Whether one more request may start beside ``running`` others. Raises ApiError 403, or 429 for a flood."""
        if running >= MAX_AT_ONCE:
            message = f"this key has {running} requests running; wait for one of them"
            raise ApiError(429, "too_many_requests", message, type="rate_limit_error")
        if self.turns and used.turns + running >= self.turns:
            raise _refusal(f"this key may take {self.turns} turns")
        if self.sampled_tokens and used.sampled_tokens >= self.sampled_tokens:
            raise _refusal(f"this key may sample {self.sampled_tokens} tokens")
        if self.sampled_tokens and used.sampled_tokens + used.held >= self.sampled_tokens:
            message = "the requests of this key that run hold all tokens that it has left; wait for one of them"
            raise ApiError(429, "too_many_requests", message, type="rate_limit_error")

    def apply(self, sampling: Sampling, used: Used, prompt_tokens: int) -> Sampling:
        """``sampling`` as these terms have it. Raises ContextTooLong where the prompt leaves no room."""
        most = sampling.max_tokens
        if self.turn_tokens:
            most = min(most, self.turn_tokens)
        if self.sampled_tokens:
            most = min(most, max(1, self.sampled_tokens - used.sampled_tokens - used.held))
        if self.context_tokens:
            if prompt_tokens >= self.context_tokens:
                raise ContextTooLong(prompt_tokens, self.context_tokens)
            most = min(most, self.context_tokens - prompt_tokens)
        changed = replace(sampling, max_tokens=most)
        if self.temperature is not None:
            changed = replace(
                changed,
                temperature=self.temperature,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                logit_bias={},
                presence_penalty=0.0,
                frequency_penalty=0.0,
                repetition_penalty=1.0,
            )
        return changed if self.seed is None else replace(changed, seed=self.seed)


def _refusal(message: str) -> ApiError:
    return ApiError(403, LIMIT_REACHED, message, type="permission_error")
