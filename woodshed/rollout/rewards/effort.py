"""The nonlinear effort penalty of the Composer 2 report, section 4.2."""

from __future__ import annotations

import math

from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory


def effort(
    task: Task,
    trajectory: Trajectory,
    outcome: Outcome,
    *,
    k: float = 1.0,
    q: float = 0.5,
    thinking_tokens: float = 1 / 2000,
    tool_call_tokens: float = 1 / 2000,
    tool_output_tokens: float = 1 / 10_000,
    final_message_tokens: float = 1 / 2000,
    tool_calls: float = 0.1,
    turns: float = 0.1,
) -> float:
    """-C_{k,q}(x), x = w1 thinking + w2 tool-call + w3 tool-output + w4 final-message tokens + w5 calls + w6 turns.

    The last six options are w1 to w6, at least 0. Summaries count as thinking and final messages. A reply that only
    calls ``finish`` is a final message; beside other calls its text counts with them. The report gives no values; the
    defaults are scaled so that x is about 1 for a task of a few turns and some hundred tokens. Parallel calls of one
    turn are counted separately.
    """
    spent = trajectory.effort
    weighted = (
        (thinking_tokens, spent.thinking_tokens),
        (tool_call_tokens, spent.tool_call_tokens),
        (tool_output_tokens, spent.tool_output_tokens),
        (final_message_tokens, spent.final_message_tokens),
        (tool_calls, spent.tool_calls),
        (turns, spent.turns),
    )
    if any(weight < 0 for weight, _ in weighted):
        raise ValueError("effort: weights of tokens, calls and turns must be at least 0")
    return -effort_cost(sum(weight * count for weight, count in weighted), k=k, q=q)


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
