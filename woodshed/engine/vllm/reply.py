"""One streamed reply of vLLM: tokens arrive at once, their versions with the last event."""

from __future__ import annotations

from typing import Any

from woodshed.engine.protocol import (
    Completion,
    EngineError,
    OnReport,
    OnToken,
    Sampling,
    StopReason,
    TokenReport,
    point_mass,
)

from . import wire


class Reply:
    """Collects a completion of ``sampling`` and calls ``on_token`` and ``on_report``.

    vLLM reports only at the end which weights sampled a token. As long as weights do not change, this is known earlier:
    ``version`` sampled every token. ``unsure`` is set for replies that are open while weights change; from then on
    tokens are passed on at the end, with the versions that vLLM reports. ``enough``: ``on_token`` ended the completion.
    """

    def __init__(
        self,
        version: int,
        initial: int,
        vocabulary: int | None,
        sampling: Sampling,
        *,
        on_token: OnToken | None,
        on_report: OnReport | None,
    ) -> None:
        self.unsure = self.enough = False
        self.request_id: str | None = None
        self._version, self._initial, self._vocabulary = version, initial, vocabulary
        self._sampling, self._on_token, self._on_report = sampling, on_token, on_report
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._reports: list[TokenReport] = []
        self._told = 0
        self._reason: StopReason | None = None
        self._spans: Any = None
        self._routes: Any = None
        self._cached = 0

    def take(self, event: dict[str, Any]) -> None:
        """Process one event. Raises ValueError if it is invalid, EngineError if it is an error or ``on_token``
        raises."""
        if problem := event.get("error"):
            text = problem.get("message") if isinstance(problem, dict) else problem
            raise EngineError(f"vLLM aborted the request: {text}")
        try:
            self.request_id = event.get("request_id") or self.request_id
            if usage := event.get("usage"):
                self._cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            for choice in event.get("choices") or []:
                pairs, greedy = wire.read_tokens(choice, self._vocabulary), self._sampling.temperature == 0
                self._tokens += [token for token, _ in pairs]
                # greedy decoding samples from a point mass
                self._logprobs += [0.0 if greedy else logprob for _, logprob in pairs]
                if self._sampling.reported and greedy:
                    self._reports += [point_mass(token, self._sampling) for token, _ in pairs]
                elif self._sampling.reported:
                    self._reports += wire.read_reports(choice, self._sampling)
                if choice.get("finish_reason") is not None:
                    self._reason = wire.read_reason(choice["finish_reason"])
                    self._spans, self._routes = choice.get("weight_versions"), choice.get("routed_experts")
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"an event is invalid: {error!r}") from None
        if not self.unsure:
            self._tell([self._version] * (len(self._tokens) - self._told))

    def end(self, prompt: int) -> Completion:
        """Return the completion. Raises ValueError if the reply is incomplete, EngineError if tokens were passed on
        with another version than the one that sampled them."""
        if self._reason is None:
            raise ValueError("the reply is incomplete: it has no finish_reason")
        count = len(self._tokens)
        try:
            versions = wire.read_versions(self._spans, count, self._initial) if count else []
        except (KeyError, TypeError) as error:
            raise ValueError(f"weight_versions is invalid: {error!r}") from None
        if any(version != self._version for version in versions[: self._told]):
            raise EngineError(
                f"vLLM's weights became version {max(versions)} while this client assumed {self._version}: only one "
                "gateway may update a vLLM server"
            )
        routes, prompt_routes = wire.read_routes(self._routes, prompt, count)
        self._tell(versions[self._told :])
        return Completion(
            tokens=self._tokens,
            logprobs=self._logprobs,
            versions=versions,
            stop_reason=self._reason,
            routes=routes,
            prompt_routes=prompt_routes,
            cached_tokens=min(self._cached, prompt),
            reports=self._reports if self._sampling.reported else None,
        )

    def _tell(self, versions: list[int]) -> None:
        at, self._told = self._told, self._told + len(versions)
        try:
            for i, version in enumerate(versions, at):
                if self._reports and self._on_report is not None:
                    self._on_report(self._reports[i])
                if self._on_token is not None:
                    self.enough |= self._on_token(self._tokens[i], self._logprobs[i], version) is True
        except Exception as error:
            raise EngineError(f"on_token raised {error!r}") from error
