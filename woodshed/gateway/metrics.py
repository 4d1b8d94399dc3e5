"""Counters of a server, in Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from woodshed.cluster.service import engine_lines, metric

_HELP = {
    "turns": "Replies recorded",
    "prompt_tokens": "Prompt tokens of recorded replies",
    "cached_tokens": "Prompt tokens that the engine had in its cache",
    "sampled_tokens": "Sampled tokens of recorded replies",
    "prefix_breaks": "Requests that started a new segment in a trajectory that had one",
    "parse_errors": "Replies whose tool call could not be parsed",
    "cancelled": "Requests that ended because the client disconnected or the trajectory was closed",
    "redelivered": "Recorded replies that may not have arrived and were sent again",
    "feedback": "Feedback events",
    "ignored": "Request fields that were accepted without effect",
}


class Metrics:
    """Counters since the start; plain attributes, changed in the event loop only."""

    def __init__(self) -> None:
        self.turns = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.sampled_tokens = 0
        self.prefix_breaks = 0
        self.parse_errors = 0
        self.cancelled = 0
        self.redelivered = 0
        self.feedback = 0
        self.ignored = 0
        self.responses: Counter[int] = Counter()

    def text(self, gauges: Mapping[str, float], engine: Mapping[str, Any]) -> str:
        """The counters, ``gauges``, and the numeric values of the engine's ``stats()``."""
        lines: list[str] = []
        for name, about in _HELP.items():
            lines += metric(f"woodshed_gateway_{name}_total", "counter", about, getattr(self, name))
        name = "woodshed_gateway_responses_total"
        lines += [f"# HELP {name} Responses of the dialects by HTTP status", f"# TYPE {name} counter"]
        lines += [f'{name}{{status="{status}"}} {n}' for status, n in sorted(self.responses.items())]
        for key, value in gauges.items():
            lines += metric(f"woodshed_gateway_{key}", "gauge", key.replace("_", " "), value)
        return "\n".join([*lines, *engine_lines(engine)]) + "\n"
