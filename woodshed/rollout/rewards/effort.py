"""The nonlinear effort penalty of the Composer 2 report, section 4.2."""

from __future__ import annotations

import math

from woodshed.grading.settings import EffortWeights
from woodshed.record.trajectory import Effort


def effort_cost(x: float, *, k: float = 1.0, q: float = 0.5) -> float:
    """C_{k,q}(x) = ((1 + k x)^(1-q) - 1) / (k (1-q)); the limit ln(1 + k x) / k at q = 1.

    ``x`` >= 0 in effort units, ``k`` > 0, ``q`` >= 0. C(0) = 0 and C'(x) = (1 + k x)^-q: linear at q = 0, saturating
    at 1 / (k (q-1)) above 1. Written with expm1 and log1p, so that it is exact near q = 1 and near x = 0.
    Raises ValueError outside that domain.
    """
    if x < 0 or k <= 0 or q < 0:
        raise ValueError(f"effort: needs x >= 0, k > 0, q >= 0; got x={x}, k={k}, q={q}")
    log = math.log1p(k * x)
    power = (1.0 - q) * log
    return log / k if power == 0.0 else log * (math.expm1(power) / power) / k


def effort_units(effort: Effort, weights: EffortWeights | None = None) -> float:
    """x = w1 thinking + w2 tool-call + w3 tool-output + w4 final-message tokens + w5 tool calls + w6 turns."""
    w = weights or EffortWeights()
    return (
        w.thinking_tokens * effort.thinking_tokens
        + w.tool_call_tokens * effort.tool_call_tokens
        + w.tool_output_tokens * effort.tool_output_tokens
        + w.final_message_tokens * effort.final_message_tokens
        + w.tool_calls * effort.tool_calls
        + w.turns * effort.turns
    )


def effort_penalty(effort: Effort, *, k: float = 1.0, q: float = 0.5, weights: EffortWeights | None = None) -> float:
    """C_{k,q} of an episode's effort, at least 0; the caller takes a multiple of it off the reward."""
    return effort_cost(effort_units(effort, weights), k=k, q=q)
