"""What the engine raises. Imports no torch."""

from __future__ import annotations

import time
from typing import Any


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
