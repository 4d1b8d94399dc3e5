"""One request of a client, independent of its dialect."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ReplyRules:
    """Constraints on a reply, which ``constraints.py`` turns into a grammar.

    ``must_call``: it must call a tool. ``only``: names of the tools that it may call; None means all. ``one_call``: at
    most one call. ``strict``: tools whose arguments must follow their schema even if no call is forced. ``schema``: the
    JSON schema of its text, from the request's field ``schema_field``.
    """

    must_call: bool = False
    only: tuple[str, ...] | None = None
    one_call: bool = False
    strict: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    schema_field: str = ""

    @property
    def demanded(self) -> bool:
        """True if the rules are required; otherwise they are preferences."""
        return self.must_call or self.only is not None or self.schema is not None

    @cached_property
    def key(self) -> str:
        """Hash that is the same for equal rules. Computed when the request is read, because a schema may be large."""
        return hashlib.blake2b(repr(self).encode("utf-8", "replace"), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One turn to sample.

    ``messages`` and ``tools`` have the form of Chat Completions in every dialect, so that the same conversation has the
    same tokens in all of them; messages are checked when they are rendered. ``max_tokens`` is None if not given.
    ``call_tools`` is False if the reply must not be parsed for tool calls.
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
    """True if the reply has the log-probability of each token."""
    top_logprobs: int = 0
    """Number of most likely tokens whose log-probabilities the reply has at each position."""
    raw_logprobs: bool | None = None
    """True if log-probabilities are those of the policy itself instead of the distribution that is sampled from; None
    is the server's default."""
    choices: int = 1
    """Number of requested replies (``n``)."""
    choice: int = 0
    """Index of this choice, once there is one ``Request`` per choice."""
    share: int | None = None
    """Maximum number of tokens of this choice if the key's remaining tokens are shared among the choices. No part of
    ``sampling_digest``: the same request has another share later."""
    ignored: tuple[str, ...] = ()
    """Names of fields that were given but have no effect here."""
    size: int = 0
    """Size of the request body in bytes."""

    @property
    def reported(self) -> bool:
        """True if the reply has log-probabilities that are not in the record."""
        return self.logprobs and (bool(self.raw_logprobs) or self.top_logprobs > 0)

    def sampling_digest(self) -> str:
        """Hash that is the same for requests with the same sampling options, grammars aside."""
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
        # added only if set: journals may hold digests from before these fields existed
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        if penalties != (0.0, 0.0, 1.0):
            asked = (*asked, penalties)
        if self.reported:
            asked = (*asked, self.raw_logprobs, self.top_logprobs)
        if self.choices > 1:
            asked = (*asked, self.choices, self.choice)
        return hashlib.blake2b(repr(asked).encode("utf-8", "replace"), digest_size=8).hexdigest()
