"""A completion that is sampled by several engines in succession because one of them died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.protocol import Completion, OnToken, Sampling, StopReason, TokenReport


class Partial:
    """The tokens sampled so far, with their versions and log-probabilities at sampling time.

    The next engine continues from the prompt and these tokens, with the rest of the token limit and of the seed's
    random numbers, so a single engine could have sampled the same completion. Routes that a dead engine did not report
    are replaced by those with which the next engine recomputed the same tokens: its own tokens were sampled given
    these routes.
    """

    def __init__(self, prompt: Sequence[int], sampling: Sampling, on_token: OnToken | None) -> None:
        self._prompt, self._sampling, self._on_token = list(prompt), sampling, on_token
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.reports: list[TokenReport] = []

    def listener(self) -> Listener:
        """The callbacks of one attempt. Tokens that an engine reports after its attempt ended are ignored."""
        return Listener(self)

    def take(self, token: int, logprob: float, version: int) -> bool | None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return None if self._on_token is None else self._on_token(token, logprob, version)

    @property
    def ended(self) -> StopReason | None:
        """The stop reason if nothing is left to sample, because the engine died after the last token and before its
        END frame; else None."""
        if self.tokens and self.tokens[-1] in self._sampling.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self._sampling.max_tokens else None

    @property
    def prompt(self) -> list[int]:
        return self._prompt + self.tokens

    @property
    def sampling(self) -> Sampling:
        """The sampling of the remaining tokens."""
        count = len(self.tokens)
        asked = self._sampling
        return replace(asked, max_tokens=asked.max_tokens - count, drawn=asked.drawn + count) if count else asked

    def cut(self, reason: StopReason) -> Completion:
        """The completion of the tokens sampled so far."""
        return Completion(self.tokens, self.logprobs, self.versions, reason, reports=self._reported())

    def whole(self, rest: Completion) -> Completion:
        """The whole completion; ``rest`` is the part that the last engine sampled."""
        kept = len(self.tokens) - len(rest.tokens)
        if not kept:
            return rest
        prompt, before = _divide(rest.prompt_routes, kept)
        routes = None if rest.routes is None else np.concatenate([before, rest.routes])
        return Completion(
            tokens=self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            stop_reason=rest.stop_reason,
            routes=routes,
            prompt_routes=prompt,
            cached_tokens=min(rest.cached_tokens, len(self._prompt)),
            reports=self._reported(),
        )

    def _reported(self) -> list[TokenReport] | None:
        # vLLM has reports only where the caller requests log-probabilities
        complete = len(self.reports) == len(self.tokens)
        return self.reports if self._sampling.with_reports and complete else None


class Listener:
    """``on_token`` and ``on_report`` of one attempt."""

    def __init__(self, partial: Partial) -> None:
        self._partial: Partial | None = partial

    def __call__(self, token: int, logprob: float, version: int) -> bool | None:
        return None if self._partial is None else self._partial.take(token, logprob, version)

    def report(self, report: TokenReport) -> None:
        if self._partial is not None:
            self._partial.reports.append(report)

    def stop(self) -> None:
        self._partial = None


def _divide(routes: NDArray[np.int16] | None, kept: int) -> tuple[NDArray[np.int16] | None, NDArray[np.int16]]:
    """Split routes int16 ``[n, L, K]`` of the last n tokens of a context into those of the prompt and those of the last
    ``kept`` tokens; the latter are -1 where unknown."""
    if routes is None:
        return None, np.empty((0, 0, 0), np.int16)
    if len(routes) >= kept:
        return routes[: len(routes) - kept], routes[len(routes) - kept :]
    unknown = np.full((kept - len(routes), *routes.shape[1:]), -1, np.int16)
    return routes[:0], np.concatenate([unknown, routes])
