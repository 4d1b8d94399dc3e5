"""Scores, paired differences and Pareto fronts from episodes; how they are shown."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from woodshed.evaluate.comparison import (
    EvaluatedEpisode,
    PolicyEpisodes,
    Price,
    difference,
    fronts,
    pareto_front,
    score,
)
from woodshed.evaluate.run import sample_seed
from woodshed.evaluate.suites.base import Suite
from woodshed.run.evaluation.policies import EvaluationError
from woodshed.run.evaluation.results import compute_results, prices_of
from woodshed.view.comparison import axis_cells, cheat_cells, print_results, write_page


def episodes(solved: dict[str, list[bool | None]], **more: Any) -> list[EvaluatedEpisode]:
    about = {"turns": 3, "sampled_tokens": 100, "context_tokens": 900, "seconds": 2.0, **more}
    return [
        EvaluatedEpisode(
            id=f"{task}:{n}",
            suite="s",
            task=task,
            resolved=resolved,
            status="infra_error" if resolved is None else "submitted",
            **about,
        )
        for task, each in solved.items()
        for n, resolved in enumerate(each)
    ]


def policy(name: str, solved: dict[str, list[bool | None]], harness: str = "h" * 16, **more: Any) -> PolicyEpisodes:
    found = episodes(solved, **more)
    return PolicyEpisodes(name, f"runs/{name}", harness, found, planned=len(found), temperature=1.0)


A = policy("a", {"t1": [True, False], "t2": [False, False], "t3": [True, None]})
B = policy("b", {"t1": [True, True], "t2": [True, False], "t4": [True, True]}, sampled_tokens=1100)


def test_a_score_counts_tasks_alike_and_leaves_infrastructure_errors_out() -> None:
    found = score(A)
    assert found.pass1.mean == pytest.approx((0.5 + 0 + 1) / 3)
    assert found.pass_at == {1: found.pass1.mean, 2: 0.5}, "pass@2 only of the tasks with two samples"
    assert (found.infra_errors, found.infra_rate, found.submitted) == (1, 1 / 6, 1.0)
    assert (found.tokens, found.turns, found.dollars) == (1000, 3, None)
    assert math.isnan(score(A, "other").pass1.mean) and score(A, "other").tasks == 0


def test_a_difference_is_paired_by_task() -> None:
    found = difference(B, A)
    assert found.tasks == 2 and found.gain is not None and found.gain.mean == pytest.approx((0.5 + 0.5) / 2)
    assert found.note == "2 tasks have samples of one of them only"


def test_harnesses_are_not_mixed_silently() -> None:
    other = PolicyEpisodes("c", "runs/c", "g" * 16, A.episodes, planned=6)
    refused = difference(other, A)
    assert refused.gain is None and "different harnesses" in refused.note and "not compared" in refused.note
    allowed = difference(other, A, across_harnesses=True)
    assert allowed.gain is not None and allowed.gain.mean == 0 and "different harnesses" in allowed.note


def test_tasks_that_say_nothing_about_skill_count_for_cheats_only() -> None:
    tempted = episodes({"impossible": [True]}, scored=False, cheated=True, reasons=("impossible_passed",))
    honest = episodes({"editable": [True]}, cheated=False)
    found = score(PolicyEpisodes("p", "p", "h", [*tempted, *honest], planned=2))
    assert (found.tasks, found.pass1.mean, found.judged, found.cheats) == (1, 1.0, 2, 1)
    assert found.cheat_rate == 0.5 and found.reasons == {"impossible_passed": 1}


def test_the_front_has_what_no_other_beats() -> None:
    points = {"cheap": (1.0, 0.2), "good": (5.0, 0.9), "worse": (5.0, 0.8), "dear": (9.0, 0.9), "nan": (math.nan, 1.0)}
    assert pareto_front(points) == ["cheap", "good"]
    assert pareto_front({"x": (1.0, 0.5), "twin": (1.0, 0.5)}) == ["x", "twin"]
    assert fronts({"a": score(A), "b": score(B)})["tokens"] == ["a", "b"]


def test_prices() -> None:
    price = prices_of(["a=3/15"], ["a", "b"])["a"]
    assert price == Price(3, 15) and price.of(A.episodes[0]) == pytest.approx((3 * 900 + 15 * 100) / 1e6)
    for text, said in (("x=1/2", "no policy is called 'x'"), ("a=1", "CONTEXT/SAMPLED"), ("a=-1/2", "not negative")):
        with pytest.raises(EvaluationError, match=said):
            prices_of([text], ["a", "b"])


def test_seeds_are_of_the_sample_and_not_of_the_try() -> None:
    assert sample_seed(1, "t@0:03") == sample_seed(1, "t@0:03.1") == sample_seed(1, "t@0:03.12")
    assert len({sample_seed(s, f"t@0:{k:02d}") for s in (0, 1) for k in range(50)}) == 100
    assert sample_seed(1, "t@0:100.1") == sample_seed(1, "t@0:100") < 2**31


@pytest.mark.parametrize(("tasks", "mark"), [(1, ""), (4, ""), (10, " +")])
def test_an_axis_is_marked_only_with_enough_tasks(tasks: int, mark: str) -> None:
    """Every episode of ``b`` ends without a message and takes two lines more than the reference, none of ``a`` does."""
    solved: dict[str, list[bool | None]] = {f"t{n}": [True] for n in range(tasks)}
    both = [
        policy(name, solved, axes={"silent": value, "excess": 1 + value}) for name, value in (("a", 0.0), ("b", 1.0))
    ]
    settings = {"seed": 0, "samples": 1, "suites": {"s": {}}, "policies": {}}
    results = compute_results(both, [Suite("s", "s", ())], settings, baselines=["a"])
    shown = {row[0]: row[3] for row in axis_cells(results)}
    assert shown["submitted without a message"] == f"1.000{mark}"
    assert shown["changed lines over those of the reference, if solved"] == "2.000"


def test_a_policy_is_shown_by_its_whole_name() -> None:
    """Folders and models are named by others; rich would take what is in brackets for a style."""
    names = ["sft[red]", "sft[blue]", "rl[/]"]
    settings = {"seed": 0, "samples": 2, "suites": {"s": {}}, "policies": {}}
    found = [policy(name, {"t1": [True, False]}) for name in names]
    results = compute_results(found, [Suite("s", "s", ())], settings, baselines=names[:1])
    shown = StringIO()
    print_results(results, Console(file=shown, width=200, no_color=True))
    assert all(name in shown.getvalue().splitlines()[1] for name in names)


def test_flagged_episodes_are_counted_among_those_that_ended() -> None:
    flagged = policy("a", {"t1": [True, None], "t2": [False, False]}, flagged=("deletes_tests",))
    settings = {"seed": 0, "samples": 2, "suites": {"s": {}}, "policies": {}}
    results = compute_results([flagged], [Suite("s", "s", ())], settings, baselines=["a"])
    assert cheat_cells(results)[1:] == [["a", "flagged: deletes_tests", "3 of 3"]]


def test_results_are_shown_whole(tmp_path: Path) -> None:
    settings = {"seed": 0, "samples": 2, "suites": {"s": {}}, "policies": {}}
    cheating = PolicyEpisodes("<b>", "x", "g" * 16, B.episodes, planned=9, price=Price(1, 1))
    results = compute_results([A, cheating], [Suite("s", "s", ())], settings, baselines=["a"])
    assert results["complete"] is False
    page = tmp_path / "page.html"
    write_page(results, page)
    text = page.read_text("utf-8")
    assert "<b>" not in text.replace("&lt;b&gt;", "") and text.count("<svg") == 3 and "<script" not in text
    assert "6 of 9 episodes" in text and "2 different harnesses" in text
    shown = StringIO()
    print_results(results, Console(file=shown, width=200, no_color=True))
    assert "0.500 [" in shown.getvalue() and "not compared" in shown.getvalue()


def test_no_number_is_cut_where_a_terminal_is_narrow() -> None:
    names = [f"policy-{number}" for number in range(8)]
    axes = {"axes": {"excess": 1.25}}
    policies = [
        PolicyEpisodes(name, name, "h", episodes({"a": [True, False], "b": [True, True]}, **axes), planned=4)
        for name in names
    ]
    settings = {"seed": 0, "suites": {"s": {}}, "policies": {name: {} for name in names}}
    results = compute_results(policies, [Suite("s", "s", ())], settings, baselines=names[:1])
    shown = StringIO()
    print_results(results, Console(file=shown, width=80, no_color=True))
    text = shown.getvalue()
    assert "…" not in text and text.count("0.750 [") == text.count("1,000 ") == text.count("1.250 ") == 8
