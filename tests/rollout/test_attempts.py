"""Attempts at a repair, the choice of a temperature, and which baseline counts."""

from __future__ import annotations

import asyncio
import math

import pytest

from woodshed.evaluate.arms import AFTER, ALONE, BEFORE, OTHER, REJECTION, best_baseline, stage_of, titles
from woodshed.evaluate.sweep import best_temperature, check_told, choose_temperature, means_over_shared_tasks
from woodshed.record.trajectory import ToolEvent
from woodshed.rollout.attempts import attempt_rates, attempts, rate_if_fresh, wasted_calls
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.stages.demonstrations import ends_tested

PASS, FAIL = "PASS 18", "FAIL ridge\nwant 1\ngot 2"


def event(name: str, result: str = "ok", error: str | None = None) -> ToolEvent:
    return ToolEvent(0, name, {}, result, error)


def test_results_of_both_runners_are_read() -> None:
    assert suite_passed(PASS) and suite_passed("===== 12 passed in 0.3s =====")
    assert not suite_passed(f"PASS 18\n{FAIL}"), "the code under test printed the first line"
    assert not suite_passed(FAIL) and not suite_passed("1 failed, 3 passed in 1s")


@pytest.mark.parametrize(
    ("passed", "failed"),
    [
        ("..\n2 passed, 1 warning in 0.01s", "..E\n2 passed, 1 error in 0.01s"),
        (
            "UserWarning: parse error ignored, 1 failed before\n=== 2 passed, 1 skipped in 0.01s ===",
            "== 1 error in 0.01s ==",
        ),
        (".\n-----\nRan 1 test in 0.000s\n\nOK", "F\n-----\nRan 1 test in 0.000s\n\nFAILED (failures=1)"),
        ("Ran 2 tests in 0.000s\n\nOK (skipped=1)", "OK\n[signal 11]"),
        ("1\nRan 1 test in 0.000s\n\nOK", "area\nOK\nTraceback (most recent call last):\nAssertionError: perimeter"),
        ("Ran 11 tests in 0.100s\n\nOK", "Ran 0 tests in 0.000s\n\nOK"),
        (
            "\n  area\n    ✔ is a product\n\n  1 passing (3ms)",
            "  area\n    1) is a product\n\n  2 passing (3ms)\n  1 failing",
        ),
        ("ok 1 - x\n1..1\n# tests 1\n# pass 1\n# fail 0\n# cancelled 0", "not ok 2 - y\n# tests 2\n# pass 1\n# fail 1"),
        ("ok 1 should be equal\n\n1..1\n# tests 1\n# pass  1\n\n# ok", "1..2\n# tests 2\n# pass  1\n# fail  1"),
        ("# pass 1\n# fail 0\n\n  3 passing (3ms)", "# pass 1\n# fail 0\n\n  3 passing (3ms)\n  1 failing"),
        (
            "Test Suites: 1 passed, 1 total\nTests:       1 skipped, 2 passed, 3 total",
            "Test Suites: 1 passed, 1 total\nTests:       1 failed, 2 passed, 3 total",
        ),
        (
            " Test Files  1 passed (1)\n      Tests  2 passed | 1 skipped (3)",
            " Test Files  1 failed (1)\n      Tests  1 failed | 2 passed (3)",
        ),
        ("PASS 18", "2 passed in 0.01s\nerror: timeout: stopped after 60 s"),
    ],
)
def test_summaries_of_every_runner_are_read(passed: str, failed: str) -> None:
    assert suite_passed(passed) and not suite_passed(failed)


def test_an_attempt_is_an_accepted_edit_and_the_next_test() -> None:
    first = [event("run_tests", FAIL), event("edit_line"), event("edit_line"), event("run_tests", FAIL)]
    rejected = [event("edit_line", "error: no change", "no_change"), event("run_tests", FAIL)]
    undone = [event("undo"), event("run_tests", FAIL)]
    last = [event("edit_line"), event("run_tests", PASS), event("run_tests", PASS), event("edit_line")]
    assert attempts([*first, *rejected, *undone, *last]) == [False, True]
    assert attempt_rates([[*first, *last], first, last]) == (1 / 3, 1.0)
    assert math.isnan(attempt_rates([undone])[0])


def test_later_attempts_are_held_against_first_ones_of_other_episodes() -> None:
    passed, failed = [event("edit_line"), event("run_tests", PASS)], [event("edit_line"), event("run_tests", FAIL)]
    twice = [[*failed, *failed], passed, passed, failed]  # its one later attempt: 2 of the 3 other first ones pass
    thrice = [[*failed, *failed, *passed], failed]  # its two: none of the one other
    assert rate_if_fresh([twice, thrice]) == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert rate_if_fresh([[[*passed, *failed], failed, []]]) == 0, "its own first attempt does not count"
    assert math.isnan(rate_if_fresh([[[*failed, *failed]], [passed, failed]])), "nobody to compare with, none later"


def test_wasted_calls_are_those_that_left_nothing() -> None:
    rejected, edit, undo = event("edit_line", "error: no change", "no_change"), event("edit_line"), event("undo")
    assert wasted_calls([event("run_tests", FAIL), rejected, edit, event("run_tests", FAIL), undo, edit]) == {1, 2}
    assert wasted_calls([edit, event("write_file"), undo, undo, edit]) == {0, 1}, "the last change first"
    nothing = event("undo", "error: nothing to undo", "nothing_to_undo")
    assert wasted_calls([nothing, edit]) == {0}
    assert wasted_calls([edit, event("run_tests", FAIL), edit, event("run_tests", PASS)]) == set(), "both may be needed"


def test_a_demonstration_is_verified_where_the_last_edit_was_tested() -> None:
    def told(*calls: tuple[str, str]) -> list[dict[str, object]]:
        messages: list[dict[str, object]] = []
        for n, (name, result) in enumerate(calls):
            messages.append({"role": "assistant", "tool_calls": [{"id": f"c{n}", "function": {"name": name}}]})
            messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": result})
        return messages

    assert ends_tested(told(("edit_line", "ok"), ("run_tests", PASS), ("finish", "")))
    assert ends_tested(told(("edit_line", "ok"), ("run_tests", PASS), ("edit_line", "error: no change")))
    assert not ends_tested(told(("edit_line", "ok"), ("run_tests", FAIL)))
    assert not ends_tested(told(("edit_line", "ok"), ("run_tests", PASS), ("run_tests", FAIL)))
    assert not ends_tested(told(("read_file", "text"), ("finish", ""))), "no test was run"
    assert not ends_tested(told(("edit_line", "ok"), ("run_tests", PASS), ("edit_line", "ok")))
    assert not ends_tested(told(("edit_line", "ok"), ("run_tests", PASS), ("undo", "ok")))
    assert not ends_tested(
        told(
            ("edit_line", "ok"),
        )
    )


def test_the_best_baseline_is_never_rl() -> None:
    rates = {OTHER: 0.5, BEFORE: 0.6, REJECTION: 0.55, AFTER: 0.9}
    assert best_baseline(rates) == BEFORE and best_baseline({BEFORE: 0.1, AFTER: 0.2}) == BEFORE
    with pytest.raises(KeyError):
        best_baseline({AFTER: 1.0})
    assert titles(True)[BEFORE] == titles(False)[OTHER] == "SFT, verified"
    assert titles(True)[AFTER] == titles(True, solved=True)[ALONE] == "RL" != titles(True, solved=True)[AFTER]
    assert len({stage_of(arm) for arm in (OTHER, BEFORE, REJECTION, ALONE, AFTER)}) == 5
    assert best_baseline({ALONE: 0.9, BEFORE: 0.1, AFTER: 0.2}) == BEFORE


def test_the_lowest_of_equally_good_temperatures() -> None:
    assert best_temperature({1.0: 0.5, 0.3: 0.5, 0.6: 0.4}) == 0.3 and best_temperature({0.3: 0.1, 1.0: 0.2}) == 1.0
    assert best_temperature({0.3: math.nan, 0.6: 0.0, 1.0: math.nan}) == 0.6, "no sample says nothing"


def test_a_temperature_that_lost_a_hard_task_is_not_the_best_for_it() -> None:
    """Infrastructure errors ended all samples of a task at one temperature, or all samples at another."""
    found = {
        0.3: {"easy": [True, False]},
        0.6: {"easy": [True, True], "hard": [False, False]},
        1.0: {"easy": [], "hard": []},
    }

    async def samples(at: float) -> dict[str, list[bool]]:
        return found[at]

    chosen, tried = asyncio.run(choose_temperature((0.3, 0.6, 1.0), samples))
    assert chosen == 0.6 and (tried[0.3], tried[0.6]) == (0.5, 1.0) and math.isnan(tried[1.0])
    assert asyncio.run(choose_temperature((0.3,), samples)) == (0.3, {})


def test_lost_development_samples_choose_nothing() -> None:
    check_told({})
    check_told({0.3: math.nan, 1.0: 0.0})
    with pytest.raises(ValueError, match="no sample on the development tasks ended"):
        check_told({0.3: math.nan, 1.0: math.nan})
    assert means_over_shared_tasks([{"a": [True]}, {"b": [False]}]) == [1.0, 0.0], "none is shared"
