"""Effort and behaviour terms against closed forms (invariants of the published penalty)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.gateway.key_limits import TurnUsage
from woodshed.gateway.segments_wire import Finished
from woodshed.harness.settings import LimitSettings
from woodshed.record.store import trajectory_to_bytes
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Effort, Outcome, Trajectory
from woodshed.rollout.observed import observe
from woodshed.rollout.program import ProgramExit
from woodshed.rollout.rewards import load_term
from woodshed.rollout.rewards.effort import effort_cost

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


def test_units_are_the_weighted_sum(tmp_path: Path) -> None:
    spent = Effort(
        turns=3,
        tool_calls=5,
        thinking_tokens=7,
        tool_call_tokens=11,
        tool_output_tokens=13,
        final_message_tokens=17,
        prompt_tokens=10**6,
    )
    weights = {
        "thinking_tokens": 1,
        "tool_call_tokens": 2,
        "tool_output_tokens": 3,
        "final_message_tokens": 4,
        "tool_calls": 5,
        "turns": 6,
    }
    run = Trajectory("i", "t", "g", "train", "h", "p", "submitted", effort=spent)
    toy = Task(tmp_path, "tests/toy", "", TaskInfo(), {})
    for k, q in ((2.0, 0.0), (1.0, 0.5)):
        term = load_term("effort", {"k": k, "q": q, **weights})
        assert term(toy, run, Outcome(False)) == pytest.approx(-effort_cost(7 + 22 + 39 + 68 + 25 + 18, k=k, q=q))
    assert load_term("effort")(toy, replace(run, effort=Effort()), Outcome(False)) == 0
    with pytest.raises(ValueError, match="at least 0"):
        load_term("effort", {"turns": -1.0})(toy, run, Outcome(False))


def test_every_token_of_a_program_that_writes_commands_as_text_is_priced() -> None:
    usage = [TurnUsage(0, 100 + 70 * turn, sampled_tokens=50, thinking_tokens=20, calls=0) for turn in range(4)]
    finished = Finished("i", [], usage=[vars(turn) for turn in usage])
    spent = observe(finished, ProgramExit(0, False, False, 1.0, ""), LimitSettings()).effort
    assert (spent.turns, spent.tool_calls, spent.tool_call_tokens) == (4, 0, 0)
    assert (spent.thinking_tokens, spent.final_message_tokens) == (80, 120)
    assert spent.thinking_tokens + spent.final_message_tokens == spent.sampled_tokens == 200


def test_arguments_that_a_program_nests_too_deeply_to_store_are_none() -> None:
    """The reader of JSON allows more levels than the writer of a trajectory, which is deeper in the stack."""
    kept = []
    for depth in (1, 100, *range(800, 1010, 5)):
        call = {"id": "a", "function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}}
        finished = Finished("i", [], messages=[[{"role": "assistant", "content": "", "tool_calls": [call]}]])
        episode = observe(finished, ProgramExit(0, False, False, 1.0, ""), LimitSettings())
        if episode.events[0].arguments is not None:
            kept.append(depth)
            stored = Trajectory("i", "t", "g", "rl", "h", "p", "submitted", [], [], episode.events)
            deeper(stored, 60)
    assert kept[:2] == [1, 100]


def deeper(trajectory: Trajectory, frames: int) -> bytes:
    return deeper(trajectory, frames - 1) if frames else trajectory_to_bytes(trajectory)
