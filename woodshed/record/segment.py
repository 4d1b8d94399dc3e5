"""A segment: a maximal sequence of tokens in which every request extended the previous one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kept import KeptSets


@dataclass(frozen=True)
class Span:
    """The message that tokens ``[start, end)`` of a segment belong to.

    ``role`` is one of ``system``, ``user``, ``assistant``, ``tool``; ``message`` is the index of the message in
    the conversation as the harness sent it.
    """

    start: int
    end: int
    role: str
    message: int


@dataclass(frozen=True)
class Constraint:
    """Tokens ``[start, end)`` of a segment were sampled under a grammar (``Sampling.grammar``).

    ``library`` is the name and version of the library that interpreted it. The tokens allowed at each position follow
    from the rest, so training computes them again.
    """

    start: int
    end: int
    grammar: str
    stop_ids: tuple[int, ...]
    library: str

    def to_json(self) -> list[Any]:
        return [self.start, self.end, self.grammar, list(self.stop_ids), self.library]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Constraint:
        """Read a constraint. Raises TypeError or ValueError for what ``to_json`` did not write."""
        start, end, grammar, stop_ids, library = data
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(grammar, str):
            raise ValueError(f"not a constraint: {data!r:.80}")
        return Constraint(start, end, grammar, tuple(map(int, stop_ids)), str(library))


@dataclass(frozen=True)
class Altered:
    """Tokens ``[start, end)`` of a segment were sampled from another distribution than the policy's own: at a
    ``temperature`` other than 1, with penalties (``Sampling.presence_penalty`` and so on), or ``biased`` (logit_bias).

    Their log-probabilities are not those that a trainer computes, so they cannot be trained on. Truncated sampling
    (top-p and so on) is not included: its kept sets are recorded.
    """

    start: int
    end: int
    temperature: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    biased: bool = False

    def __str__(self) -> str:
        """Describe the sampling in words, for example ``at temperature 0.5 and with penalties``."""
        parts = [f"at temperature {self.temperature:g}"] if self.temperature != 1 else []
        parts += ["with penalties"] if (self.presence, self.frequency, self.repetition) != (0, 0, 1) else []
        parts += ["with logit_bias"] if self.biased else []
        return " and ".join(parts)

    def to_json(self) -> list[Any]:
        return list(astuple(self))

    @staticmethod
    def from_json(data: Sequence[Any]) -> Altered:
        """Read what ``to_json`` wrote. Raises TypeError or ValueError for anything else."""
        if len(data) == 5:  # an old record, with penalties only
            data = [*data[:2], 1.0, *data[2:], False]
        start, end, temperature, presence, frequency, repetition, biased = data
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(biased, bool):
            raise ValueError(f"not altered sampling: {data!r:.80}")
        return Altered(start, end, float(temperature), float(presence), float(frequency), float(repetition), biased)


@dataclass
class Segment:
    """Token-exact record of one context window.

    ``tokens`` int32 ``[T]``; ``sampled`` bool ``[T]`` (True where the policy sampled the token); ``logprobs``
    float32 ``[T]`` (natural log, behaviour policy at sampling time, 0 where not sampled); ``versions`` int32
    ``[T]`` (PolicyVersion that sampled the token, -1 where not sampled); ``routes`` int16 ``[T, L, K]`` expert ids
    or None (-1 where unknown). ``constraints``: grammars under which tokens were sampled; their ``logprobs`` are
    normalised over the allowed tokens. ``altered``: tokens sampled at another temperature, with penalties or a
    bias. ``kept``: kept sets of tokens sampled with top-k, top-p or min-p; their ``logprobs`` are normalised over
    those.
    """

    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    spans: list[Span] = field(default_factory=list)
    routes: NDArray[np.int16] | None = None
    constraints: list[Constraint] = field(default_factory=list)
    altered: list[Altered] = field(default_factory=list)
    kept: list[KeptSets] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def check(self) -> None:
        """Raise ValueError if the arrays are inconsistent."""
        t = len(self.tokens)
        for name in ("sampled", "logprobs", "versions"):
            if len(getattr(self, name)) != t:
                raise ValueError(f"segment: {name} has {len(getattr(self, name))} entries, tokens has {t}")
        if self.routes is not None and (self.routes.ndim != 3 or self.routes.shape[0] != t):
            raise ValueError(f"segment: routes has shape {self.routes.shape}, expected [{t}, layers, k]")
        if np.any(self.logprobs[~self.sampled] != 0) or np.any(self.versions[~self.sampled] != -1):
            raise ValueError("segment: a token that was not sampled has a log-probability or a version")
        if np.any(self.versions[self.sampled] < 0):
            raise ValueError("segment: a sampled token has no policy version")
        marks = [("a grammar", c.start, c.end) for c in self.constraints]
        marks += [("altered sampling", a.start, a.end) for a in self.altered]
        marks += [("kept sets", k.start, k.end) for k in self.kept]
        for what, start, end in marks:
            if not 0 <= start < end <= t or not self.sampled[start:end].all():
                raise ValueError(f"segment: tokens {start} to {end} have {what} and were not sampled")
        edge = 0
        for span in self.spans:
            if span.start != edge or span.end < span.start:
                raise ValueError(f"segment: span {span} does not continue at token {edge}")
            edge = span.end
        if self.spans and edge != t:
            raise ValueError(f"segment: spans end at {edge}, tokens at {t}")

    @staticmethod
    def empty() -> Segment:
        return Segment(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.float32), np.zeros(0, np.int32))
