"""What every engine does. The gateway knows this protocol and nothing else about engines. Imports no torch.

What the engine raises. Imports no torch.

What is refused before anything runs. Imports no torch.
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
    """How to sample. ``stop_ids`` end a completion and are part of it; ``seed`` makes one request reproducible.

    ``drawn``: tokens of this completion that were sampled before, elsewhere; the numbers that ``seed`` gave them are
    skipped. So a completion that goes on in another engine has the tokens that it would have had in the first.

    ``grammar`` (see ``engine/grammar.py``): only tokens that it allows are sampled, before everything else that narrows
    the choice, and ``stop_ids`` only where it is fulfilled.

    ``presence_penalty`` and ``frequency_penalty`` count the generated tokens, ``repetition_penalty`` those of the
    prompt as well (see ``engine/sampler.py``); the last ``drawn`` tokens of the prompt are generated ones.

    ``raw_logprobs`` and ``top_logprobs`` ask for a ``TokenReport`` of each token: under the policy itself (temperature
    1, the whole vocabulary, nothing added) or under the distribution that is sampled from.
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
        """Whether tokens that were there before become less or more likely."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def reported(self) -> bool:
        """Whether each token has a ``TokenReport``."""
        return self.raw_logprobs or self.top_logprobs > 0

    @property
    def plain(self) -> bool:
        """Whether tokens are sampled from the policy itself."""
        narrowed = self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.grammar is not None
        return self.temperature == 1 and not (narrowed or self.logit_bias or self.penalised)


@dataclass(frozen=True)
class TokenReport:
    """What a client asked about one sampled token: its log-probability, and the most likely tokens of its position with
    theirs, the likeliest first. Tokens without any probability are left out."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def point_mass(token: int, sampling: Sampling) -> TokenReport:
    """The report of greedy decoding, which has all of its probability on one token."""
    return TokenReport(0.0, ((token, 0.0),) if sampling.top_logprobs else ())


@dataclass
class Completion:
    """Sampled tokens with what was true at sampling time.

    ``logprobs`` are natural logs under the distribution that was sampled from (after grammar, temperature and
    truncation; at temperature 1 without the others that is the policy itself). ``versions`` give the PolicyVersion per
    token. ``routes`` is int16 ``[n, L, K]`` or None. ``prompt_routes`` likewise for the tokens of the request that were
    prefilled for it (the last ``len(prompt_routes)`` prompt tokens). ``reports`` are there where ``Sampling`` asks for
    them, one per token.
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
"""Called in the engine's thread for every sampled token: (token id, logprob, version). Where it returns True, the
completion ends there or a few tokens later, with stop reason ``cancelled`` and all that belongs to it."""

OnReport = Callable[[TokenReport], None]
"""Called right before ``OnToken`` with the token's report, where ``Sampling`` asks for reports."""


def trajectory_of(session: str) -> str:
    """Sessions of one trajectory share their name up to the last dot."""
    return session.rpartition(".")[0] or session


class Engine(Protocol):
    """Token in, token out.

    ``session`` names a growing context: the engine keeps its key/value cache between calls and prefills only what is
    new. Losing a session is never an error, only slower. ``trajectory_of`` says whose it is.
    """

    @property
    def version(self) -> int: ...

    @property
    def context(self) -> int | None:
        """Longest sequence in tokens, prompt and completion; None while that is not known."""
        ...

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, session: str | None = None, on_token: OnToken | None = None
    ) -> Completion:
        """Raises SamplingRefused where this engine cannot do what ``sampling`` asks."""
        ...

    def grammars_refused(self) -> str | None:
        """Why this engine takes no ``Sampling.grammar``; None where it does."""
        ...

    def release(self, session: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class EngineError(RuntimeError):
    """The engine could not answer a request; the cause is chained."""


class EngineClosed(EngineError):
    """The engine was closed before it answered."""


class EngineUnfit(EngineError):
    """This engine cannot be used at all: another policy, another key."""


class EngineLost(EngineClosed):
    """The engine cannot be reached, or stopped answering in the middle of a request."""


class EngineBusy(EngineError):
    """Too many requests wait (``EngineSettings.max_waiting``); try again later."""


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
    """This engine cannot do what ``field`` of ``Sampling`` asks."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"sampling.{field}: {reason}")
        self.field = field
        self.reason = reason


def weights_problem(known: dict[str, Any] | None, error: Exception) -> dict[str, Any]:
    """What ``stats`` say of weights that cannot be followed: ``reason`` and ``since``, the time of the first of the
    failures in a row."""
    return {"reason": f"{type(error).__name__}: {error}", "since": known["since"] if known else time.time()}


MOST_TOP_LOGPROBS = 20
"""Alternatives per token, as in the API of OpenAI."""
MOST_PENALTY = 2.0
"""Of presence and frequency, either way, as in the API of OpenAI."""


def checked_prompt(tokens: Sequence[int], vocabulary: int, context: int) -> NDArray[np.int32]:
    """The prompt as int32 ``[P]``. Raises ValueError (ContextLengthExceeded where it is too long)."""
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


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises ValueError naming the field that is out of range."""
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
