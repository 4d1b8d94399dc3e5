"""Effort and behaviour terms against closed forms (invariants of the published penalty)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading.settings import EffortWeights
from woodshed.record.trajectory import Effort, ToolEvent
from woodshed.rollout.rewards.behaviours import invalid_calls, unfinished_todos
from woodshed.rollout.rewards.effort import effort_cost, effort_penalty, effort_units

X = st.just(0.0) | st.floats(1e-9, 1e4)
K = st.floats(1e-3, 1e3)
Q = st.floats(0, 4)


@pytest.mark.parametrize(
    ("q", "x", "value"),
    [(0.5, 0.1, 0.098), (0.5, 1, 0.828), (0.5, 10, 4.63), (0.5, 50, 12.3),
     (2, 0.1, 0.091), (2, 1, 0.5), (2, 10, 0.909), (2, 50, 0.98)],
)  # fmt: skip
def test_values_of_the_reference_table(q: float, x: float, value: float) -> None:
    assert effort_cost(x, k=1, q=q) == pytest.approx(value, rel=6e-3)


@given(X, K)
def test_limits_in_q(x: float, k: float) -> None:
    assert effort_cost(x, k=k, q=0) == pytest.approx(x, rel=1e-9, abs=1e-12)
    log = math.log1p(k * x) / k
    assert effort_cost(x, k=k, q=1) == pytest.approx(log, rel=1e-12)
    assert effort_cost(x, k=k, q=1 - 1e-10) == pytest.approx(log, rel=1e-6, abs=1e-12)
    assert effort_cost(x, k=k, q=1 + 1e-10) == pytest.approx(log, rel=1e-6, abs=1e-12)


@given(X, K, Q)
def test_shape(x: float, k: float, q: float) -> None:
    cost = effort_cost(x, k=k, q=q)
    assert effort_cost(0, k=k, q=q) == 0
    assert 0 <= cost <= x * (1 + 1e-9)  # slope 1 at 0, concave
    assert effort_cost(2 * x, k=k, q=q) >= cost * (1 - 1e-9)
    assert 2 * effort_cost(1.5 * x, k=k, q=q) >= (cost + effort_cost(2 * x, k=k, q=q)) * (1 - 1e-9)
    if q > 1.001:
        assert cost <= 1 / (k * (q - 1)) * (1 + 1e-9)


@given(st.floats(0.01, 100), st.floats(0.01, 10), st.floats(0, 3))
def test_slope_is_the_closed_form(x: float, k: float, q: float) -> None:
    h = 1e-4 * x
    slope = (effort_cost(x + h, k=k, q=q) - effort_cost(x - h, k=k, q=q)) / (2 * h)
    assert slope == pytest.approx((1 + k * x) ** -q, rel=1e-4, abs=1e-9)


def test_domain() -> None:
    for bad in ({"x": -1.0}, {"x": 1.0, "k": 0.0}, {"x": 1.0, "q": -0.1}):
        with pytest.raises(ValueError, match="effort"):
            effort_cost(**bad)


def test_units_are_the_weighted_sum() -> None:
    effort = Effort(turns=3, tool_calls=5, thinking_tokens=7, tool_call_tokens=11, tool_output_tokens=13,
                    final_message_tokens=17, prompt_tokens=10**6)  # fmt: skip
    weights = EffortWeights(thinking_tokens=1, tool_call_tokens=2, tool_output_tokens=3, final_message_tokens=4,
                            tool_calls=5, turns=6)  # fmt: skip
    assert effort_units(effort, weights) == 7 + 22 + 39 + 68 + 25 + 18
    assert effort_penalty(effort, k=2.0, q=0.0, weights=weights) == pytest.approx(179)
    assert effort_units(Effort()) == 0


def test_behaviour_terms() -> None:
    assert invalid_calls(Effort(invalid_calls=3), weight=0.1) == pytest.approx(-0.3)
    assert invalid_calls(Effort(invalid_calls=99), weight=0.1) == pytest.approx(-1.0)

    def wrote(todos: object, merge: bool = False, error: str | None = None) -> ToolEvent:
        return ToolEvent(0, "todo_write", {"todos": todos, "merge": merge}, "", error)

    first = wrote([{"id": "1", "status": "completed"}, {"id": "2", "status": "pending"}])
    assert unfinished_todos([first], weight=1) == -0.5
    assert unfinished_todos([first, wrote([{"id": "2", "status": "completed"}], merge=True)], weight=1) == 0
    assert unfinished_todos([first, wrote([], error="invalid_arguments")], weight=1) == -0.5
    assert unfinished_todos([], weight=1) == 0
    assert unfinished_todos([wrote("nonsense")], weight=1) == 0
