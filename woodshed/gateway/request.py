"""What a client asks for, whichever dialect it speaks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ReplyRules:
    """What a reply has to be. ``constraints.py`` makes a grammar of it.

    ``must_call``: it calls a tool. ``only``: names of the tools that it may call; None is all. ``one_call``: at most
    one call. ``strict``: tools whose arguments follow their schema even where no call is forced. ``schema``: the JSON
    schema of its text, which the client named in ``schema_field``.
    """

    must_call: bool = False
    only: tuple[str, ...] | None = None
    one_call: bool = False
    strict: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    schema_field: str = ""

    @property
    def demanded(self) -> bool:
        """Whether a reply must keep to the rules; where not, they are wishes."""
        return self.must_call or self.only is not None or self.schema is not None

    @cached_property
    def key(self) -> str:
        """The same for equal rules. Worked out where the request is read: a schema may be large."""
        return hashlib.blake2b(repr(self).encode("utf-8", "replace"), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One turn to sample.

    ``messages`` and ``tools`` have the shape of Chat Completions, whatever the client sent, so that the same
    conversation has the same tokens in every dialect; messages are checked when they are rendered. ``max_tokens`` is
    None where not given. ``call_tools`` is False where a reply must not be read as calls.
    """

    messages: list[Any]
    tools: list[dict[str, Any]] = field(default_factory=list)
    call_tools: bool = True
    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: dict[int, float] = field(default_factory=dict)
    rules: ReplyRules = ReplyRules()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: bool = False
    """Whether the reply tells the log-probability of each token."""
    top_logprobs: int = 0
    """And of so many of the likeliest tokens beside it."""
    raw_logprobs: bool | None = None
    """Whether these are those of the policy itself, not of the distribution that is sampled from; None is the server's
    default."""
    choices: int = 1
    """Replies that are wanted."""
    choice: int = 0
    """Which of them this is, once there is one request for each."""
    ignored: tuple[str, ...] = ()
    """Names of fields that were given and change nothing here."""
    size: int = 0
    """Bytes of the request as it was sent."""

    @property
    def reported(self) -> bool:
        """Whether the reply tells more of its tokens than the record does."""
        return self.logprobs and (bool(self.raw_logprobs) or self.top_logprobs > 0)

    def sampling_digest(self) -> str:
        """The same for requests that ask for the same kind of sample, apart from a grammar."""
        asked: tuple[Any, ...] = (
            self.max_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.seed,
            self.stop,
            sorted(self.logit_bias.items()),
            self.call_tools,
        )
        # Only what is asked for: the digest of a request is in journals of servers that did not know these fields.
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        if penalties != (0.0, 0.0, 1.0):
            asked = (*asked, penalties)
        if self.reported:
            asked = (*asked, self.raw_logprobs, self.top_logprobs)
        if self.choices > 1:
            asked = (*asked, self.choices, self.choice)
        return hashlib.blake2b(repr(asked).encode("utf-8", "replace"), digest_size=8).hexdigest()
