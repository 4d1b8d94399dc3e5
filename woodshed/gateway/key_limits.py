"""Limits and fixed sampling settings of one API key. External agents do not enforce our limits, so the gateway does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import Field

from woodshed.engine.protocol import OnToken, Sampling
from woodshed.record.settings import Settings

from .errors import ApiError, ContextTooLong

LIMIT_REACHED = "limit_reached"
"""Error code of a request beyond a limit. Its status is 403, which clients do not retry."""

MAX_CONCURRENT_REQUESTS = 64
"""Maximum number of concurrent requests of one key."""


@dataclass(frozen=True)
class TurnUsage:
    """Token usage of one answered request. ``segment``: index of the segment that it extended; ``calls``: number of
    tool calls in the reply; ``parse_error``: why a tool call of the reply could not be parsed, else empty."""

    segment: int
    prompt_tokens: int
    sampled_tokens: int
    thinking_tokens: int
    calls: int
    parse_error: str = ""
    asked: str = ""
    """``Request.sampling_digest`` of the request; empty if unknown."""


class KeyUsage(NamedTuple):
    """Usage of a key that counts against its limits. ``reserved_tokens``: tokens that its running requests may still
    sample."""

    turns: int = 0
    sampled_tokens: int = 0
    reserved_tokens: int = 0


class TokenCounter:
    """Counts the tokens sampled for one request, and passes them to ``next``."""

    def __init__(self) -> None:
        self.tokens = 0
        self.next: OnToken | None = None

    def on_token(self, token: int, logprob: float, version: int) -> bool | None:
        """Called in the engine's thread."""
        self.tokens += 1
        return None if self.next is None else self.next(token, logprob, version)


class KeyLimits(Settings):
    """Limits of one key; 0 means no limit."""

    turns: int = Field(default=0, ge=0)
    """Maximum number of replies."""
    sampled_tokens: int = Field(default=0, ge=0)
    """Maximum number of sampled tokens of all replies together."""
    turn_tokens: int = Field(default=0, ge=0)
    """Maximum number of sampled tokens per reply."""
    context_tokens: int = Field(default=0, ge=0)
    """Maximum number of tokens of prompt and reply together."""
    temperature: float | None = Field(default=None, ge=0)
    """Temperature, whatever the client requests. The client's logit bias and penalties are then ignored too, and its
    truncation is replaced by ``top_p``, ``top_k`` and ``min_p``."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p of a key that has a ``temperature``."""
    top_k: int = Field(default=0, ge=0)
    """Top-k of a key that has a ``temperature``."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p of a key that has a ``temperature``."""
    seed: int | None = None
    """Sample with this seed, whatever the client requests."""
    feedback: bool = True
    """True if the client may send feedback. Set it to false if code of the policy can read the key, since it could
    praise itself."""

    @property
    def bounded(self) -> bool:
        """True if turns or sampled tokens are limited."""
        return bool(self.turns or self.sampled_tokens)

    def check(self, usage: KeyUsage, running: int) -> None:
        """Check that one more request may start beside ``running`` others. Raises ApiError 403 if a limit is reached,
        429 if running requests must end first."""
        if running >= MAX_CONCURRENT_REQUESTS:
            message = f"this key has {running} requests running; wait for one of them"
            raise ApiError(429, "too_many_requests", message, type="rate_limit_error")
        if self.turns and usage.turns + running >= self.turns:
            raise _limit_reached(f"this key may take {self.turns} turns")
        if self.sampled_tokens and usage.sampled_tokens >= self.sampled_tokens:
            raise _limit_reached(f"this key may sample {self.sampled_tokens} tokens")
        if self.sampled_tokens and usage.sampled_tokens + usage.reserved_tokens >= self.sampled_tokens:
            message = "running requests of this key have reserved all its remaining tokens; wait for one of them"
            raise ApiError(429, "too_many_requests", message, type="rate_limit_error")

    def apply(self, sampling: Sampling, usage: KeyUsage, prompt_tokens: int) -> Sampling:
        """Restrict ``sampling`` to these limits. Raises ContextTooLong if the prompt leaves no room for a reply."""
        most = sampling.max_tokens
        if self.turn_tokens:
            most = min(most, self.turn_tokens)
        if self.sampled_tokens:
            most = min(most, max(1, self.sampled_tokens - usage.sampled_tokens - usage.reserved_tokens))
        if self.context_tokens:
            if prompt_tokens >= self.context_tokens:
                raise ContextTooLong(prompt_tokens, self.context_tokens)
            most = min(most, self.context_tokens - prompt_tokens)
        changed = replace(sampling, max_tokens=most)
        if self.temperature is not None:
            changed = replace(
                changed,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                logit_bias={},
                presence_penalty=0.0,
                frequency_penalty=0.0,
                repetition_penalty=1.0,
            )
        return changed if self.seed is None else replace(changed, seed=self.seed)


def _limit_reached(message: str) -> ApiError:
    return ApiError(403, LIMIT_REACHED, message, type="permission_error")
