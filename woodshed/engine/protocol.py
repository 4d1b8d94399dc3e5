"""The protocol of engines, their errors, and the checks of requests. The gateway depends on nothing else of an engine.
Imports no torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

StopReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. ``stop_ids`` end a completion and are part of it; ``seed`` makes one request reproducible.

    ``drawn``: the last ``drawn`` tokens of the prompt were sampled by another engine and belong to this completion. The
    random numbers that ``seed`` gave them are skipped, so a completion that moves to another engine gets the same
    tokens as if it had stayed.

    ``grammar`` (see ``engine/grammar.py``): only tokens that it allows are sampled; it applies before all other
    restrictions, and allows ``stop_ids`` only where the text so far satisfies it.

    ``presence_penalty`` and ``frequency_penalty`` count generated tokens (``drawn`` ones included),
    ``repetition_penalty`` those of the prompt as well (see ``engine/sampler.py``).

    ``raw_logprobs`` or ``top_logprobs`` request a ``TokenReport`` for each token: under the policy itself (temperature
    1, full vocabulary, no bias) with ``raw_logprobs``, else under the distribution that is sampled from. With
    ``top_p``, ``top_k`` or ``min_p`` each token has a report too, which contains its kept set.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    drawn: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    grammar: str | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    raw_logprobs: bool = False
    top_logprobs: int = 0

    @property
    def penalised(self) -> bool:
        """True if any penalty changes the logits of earlier tokens."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def altered(self) -> bool:
        """True if temperature, bias or penalties change the distribution.

        Truncation and grammars do not count.
        """
        return self.temperature != 1 or bool(self.logit_bias) or self.penalised

    @property
    def truncated(self) -> bool:
        """True if tokens are sampled from kept sets (top-k, top-p, min-p) instead of the whole vocabulary."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def reported(self) -> bool:
        """True if the caller requests log-probabilities in reports."""
        return self.raw_logprobs or self.top_logprobs > 0

    @property
    def with_reports(self) -> bool:
        """True if each token has a ``TokenReport``."""
        return self.reported or self.truncated

    @property
    def plain(self) -> bool:
        """True if tokens are sampled from the unmodified distribution of the policy."""
        narrowed = self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.grammar is not None
        return not (self.altered or narrowed)


@dataclass(frozen=True)
class TokenReport:
    """Log-probability of one sampled token. ``top``: the most likely tokens at its position with their
    log-probabilities, most likely first, without tokens of probability 0. ``kept``: ids of the kept set that the token
    was sampled from, int32 little endian, ascending; empty if the request does not truncate, or if the engine cannot
    report it."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    kept: bytes = b""


def point_mass(token: int, sampling: Sampling) -> TokenReport:
    """The report of a greedily decoded token, which has probability 1."""
    return TokenReport(0.0, ((token, 0.0),) if sampling.top_logprobs else ())


@dataclass
class Completion:
    """Sampled tokens with their log-probabilities, policy versions and expert routes at sampling time.

    ``logprobs`` are natural logarithms under the distribution that was sampled from (after grammar, bias, penalties,
    temperature and truncation; if ``Sampling.plain``, that of the policy itself). ``versions`` holds the PolicyVersion
    of each token. ``routes`` is int16 ``[n, L, K]`` or None; ``prompt_routes`` likewise for the prompt tokens whose
    routes no earlier completion of the session has returned (the last ``len(prompt_routes)`` of the prompt).
    ``reports``, one per token, exist if ``Sampling`` requests them.
    """

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    stop_reason: StopReason
    routes: NDArray[np.int16] | None = None
    prompt_routes: NDArray[np.int16] | None = None
    cached_tokens: int = 0
    reports: list[TokenReport] | None = None


OnToken = Callable[[int, float, int], bool | None]
"""Called in the engine's thread for every sampled token: (token id, logprob, version). If it returns True, the
completion ends at this token or a few tokens later, with stop reason ``cancelled``."""

OnReport = Callable[[TokenReport], None]
"""Called right before ``OnToken`` with the token's report, if ``Sampling`` requests reports."""


def trajectory_of(session: str) -> str:
    """The trajectory of a session: sessions of one trajectory have the same name up to the last dot."""
    return session.rpartition(".")[0] or session


class Engine(Protocol):
    """Samples tokens from a policy: tokens in, tokens out.

    ``session`` names a growing context: the engine keeps its key/value cache between calls and prefills only new
    tokens. A lost session costs time but is never an error. ``trajectory_of`` gives the session's trajectory.
    """

    @property
    def version(self) -> int: ...

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of prompt and completion together; None while it is unknown."""
        ...

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, session: str | None = None, on_token: OnToken | None = None
    ) -> Completion:
        """Sample a completion of ``tokens``. Raises SamplingRefused if the engine does not support ``sampling``."""
        ...

    def grammars_refused(self) -> str | None:
        """Return the reason why this engine refuses ``Sampling.grammar``, None if it accepts one."""
        ...

    def kept_sets_refused(self) -> str | None:
        """Return the reason why this engine cannot report the kept sets of top-p, top-k and min-p, None if it can."""
        ...

    def release(self, session: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class EngineError(RuntimeError):
    """The engine failed to answer a request; the cause is chained."""


class EngineClosed(EngineError):
    """The engine was closed before it answered."""


class EngineUnfit(EngineError):
    """This engine cannot be used at all, because its policy or its key is another one."""


class EngineLost(EngineClosed):
    """The engine is unreachable, or stopped answering in the middle of a request."""


class EngineBusy(EngineError):
    """Too many requests are waiting (``EngineSettings.max_waiting``); try again later."""


class ContextLengthExceeded(ValueError):
    """The prompt leaves no room for a single sampled token."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"the request has {tokens} tokens and the context holds {context}, of which at least one must be sampled; "
            "shorten the prompt or raise engine.context"
        )
        self.tokens = tokens
        self.context = context


class SamplingRefused(ValueError):
    """This engine does not support the requested ``field`` of ``Sampling``."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"sampling.{field}: {reason}")
        self.field = field
        self.reason = reason


def weights_problem(known: dict[str, Any] | None, error: Exception) -> dict[str, Any]:
    """Return the entry of ``stats`` about weights that cannot be loaded: ``reason``, and ``since``, the time of the
    first of these failures in a row."""
    return {"reason": f"{type(error).__name__}: {error}", "since": known["since"] if known else time.time()}


MOST_TOP_LOGPROBS = 20
"""Maximum number of alternatives per token, as in the OpenAI API."""
MOST_PENALTY = 2.0
"""Largest absolute value of presence and frequency penalties, as in the OpenAI API."""


def checked_prompt(tokens: Sequence[int], vocabulary: int, context: int) -> NDArray[np.int32]:
    """Return the prompt as int32 ``[P]``. Raises ValueError if it is not valid, ContextLengthExceeded if it is too
    long."""
    prompt = np.asarray(tokens, dtype=np.int64)
    if prompt.ndim != 1 or not len(prompt):
        raise ValueError("tokens: a request needs a flat sequence of at least one token")
    if len(prompt) + 1 > context:
        raise ContextLengthExceeded(len(prompt), context)
    wrong = (prompt < 0) | (prompt >= vocabulary)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"tokens[{at}] is {prompt[at]}; the policy knows ids 0 to {vocabulary - 1}")
    return prompt.astype(np.int32)


def split_prompt(sampling: Sampling, prompt: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Split off the last ``drawn`` tokens of ``prompt``, which belong to the completion. Raises ValueError."""
    if sampling.drawn > len(prompt):
        raise ValueError(f"sampling.drawn is {sampling.drawn}; the prompt has {len(prompt)} tokens")
    start = len(prompt) - sampling.drawn
    return prompt[:start], prompt[start:]


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raise ValueError, naming the field, if a field is out of range."""
    limits = (
        ("max_tokens", sampling.max_tokens >= 1, "must be at least 1"),
        ("temperature", 0 <= sampling.temperature < math.inf, "must be finite and not negative"),
        ("top_p", 0 < sampling.top_p <= 1, "must be above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "must be 0 (off) or more"),
        ("drawn", sampling.drawn >= 0, "must be 0 or more"),
        ("min_p", 0 <= sampling.min_p <= 1, "must be from 0 to 1"),
        ("presence_penalty", abs(sampling.presence_penalty) <= MOST_PENALTY, "must be from -2 to 2"),
        ("frequency_penalty", abs(sampling.frequency_penalty) <= MOST_PENALTY, "must be from -2 to 2"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "must be finite and above 0"),
        ("top_logprobs", 0 <= sampling.top_logprobs <= MOST_TOP_LOGPROBS, f"must be from 0 to {MOST_TOP_LOGPROBS}"),
    )
    for name, fine, rule in limits:
        if not fine:
            raise ValueError(f"sampling.{name} is {getattr(sampling, name)}; it {rule}")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise ValueError(f"sampling.logit_bias names token {token}; the policy knows ids 0 to {vocabulary - 1}")
        if math.isnan(bias) or bias == math.inf:
            raise ValueError(f"sampling.logit_bias of token {token} is {bias}; it must be finite or -inf")
