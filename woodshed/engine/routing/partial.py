"""A completion that may be sampled in several engines, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.protocol import Completion, OnToken, Sampling, StopReason, TokenReport


class Partial:
    """What was sampled so far, with the versions and log-probabilities of that moment.

    An engine goes on from the prompt and these tokens, with what is left of the limit and of the seed's numbers, so the
    completion is one that a single engine could have sampled. The routes that an engine which died had not reported are
    those under which the next one computed the same tokens: the tokens after them were sampled under these.
    """

    def __init__(self, prompt: Sequence[int], sampling: Sampling, on_token: OnToken | None) -> None:
        self._prompt, self._sampling, self._on_token = list(prompt), sampling, on_token
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.reports: list[TokenReport] = []

    def listener(self) -> Listener:
        """For one attempt. What an engine says after the next attempt began is not heard."""
        return Listener(self)

    def take(self, token: int, logprob: float, version: int) -> bool | None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return None if self._on_token is None else self._on_token(token, logprob, version)

    @property
    def ended(self) -> StopReason | None:
        """Why nothing is left to sample: the engine died between the last token and its answer."""
        if self.tokens and self.tokens[-1] in self._sampling.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self._sampling.max_tokens else None

    @property
    def prompt(self) -> list[int]:
        return self._prompt + self.tokens

    @property
    def sampling(self) -> Sampling:
        """For the rest."""
        count = len(self.tokens)
        asked = self._sampling
        return replace(asked, max_tokens=asked.max_tokens - count, drawn=asked.drawn + count) if count else asked

    def cut(self, reason: StopReason) -> Completion:
        """The completion of what there is."""
        return Completion(self.tokens, self.logprobs, self.versions, reason, reports=self._reported())

    def whole(self, rest: Completion) -> Completion:
        """The completion, of which the last engine sampled ``rest``."""
        kept = len(self.tokens) - len(rest.tokens)
        if not kept:
            return rest
        prompt, before = _divide(rest.prompt_routes, kept)
        routes = None if rest.routes is None else np.concatenate([before, rest.routes])
        return Completion(
            self.tokens,
            self.logprobs,
            self.versions,
            rest.stop_reason,
            routes,
            prompt,
            min(rest.cached_tokens, len(self._prompt)),
            self._reported(),
        )

    def _reported(self) -> list[TokenReport] | None:
        return self.reports if self._sampling.reported else None


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
    """Routes of the end of a context as those of its prompt and those of its last ``kept`` tokens, -1 where unknown."""
    if routes is None:
        return None, np.empty((0, 0, 0), np.int16)
    if len(routes) >= kept:
        return routes[: len(routes) - kept], routes[len(routes) - kept :]
    unknown = np.full((kept - len(routes), *routes.shape[1:]), -1, np.int16)
    return routes[:0], np.concatenate([unknown, routes])
