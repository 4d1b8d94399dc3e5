"""The figures of a run's report where infrastructure errors took some of the samples."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from woodshed.evaluate.run import group_name
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Effort, Outcome, Trajectory
from woodshed.rollout.failures import INFRA
from woodshed.view.report import build_report
from woodshed.view.summary import evaluation, gains, print_findings, telling_pairs


def stored(folder: Path, lost: int) -> TrajectoryStore:
    """Store two evaluations of 8 tasks x 4 samples, of which one passes; ``before`` lost samples of the first task."""
    store = TrajectoryStore(folder)
    for name in ("before", "after"):
        for task in (f"t/{n}" for n in range(8)):
            for sample in range(4):
                group, gone = group_name(name, task), name == "before" and task == "t/0" and sample < lost
                store.add(
                    Trajectory(
                        f"{group}:{sample:02d}",
                        task,
                        group,
                        "eval",
                        "h",
                        "p",
                        INFRA if gone else "submitted",
                        outcome=None if gone else Outcome(sample == 3),
                        effort=Effort() if gone else Effort(turns=4),
                    )
                )
    return store


def test_best_of_k_is_compared_at_one_k(tmp_path: Path) -> None:
    store = stored(tmp_path, lost=2)
    before, after = evaluation(store, "before"), evaluation(store, "after")
    assert before is not None and after is not None
    assert (before.samples, after.samples) == (2, 4) and after.best.mean == 1.0
    # Best of two of four samples, one of which passes, is 1/2; the first task has one of two before.
    assert before.best.mean == pytest.approx((7 * 0.5 + 1) / 8) and after.best_of(2).best.mean == 0.5
    assert gains(before, after)[1].mean == pytest.approx(-0.5 / 8)
    assert gains(after, before)[1].mean == pytest.approx(0.5 / 8)
    store.close()


def test_lost_samples_are_not_the_policys(tmp_path: Path) -> None:
    store = stored(tmp_path, lost=2)
    before, after = evaluation(store, "before"), evaluation(store, "after")
    assert before is not None and after is not None
    assert before.statuses == {INFRA: 2, "submitted": 30} and before.submitted == 1.0
    assert before.effort["turns"] == 4.0
    shown = {left.task: left for left, _ in telling_pairs(store, before, after, count=8)}
    assert len(shown) == 8 and {left.status for left in shown.values()} == {"submitted"}
    store.close()


def test_a_report_says_that_the_first_evaluation_is_not_finished(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    stored(run.trajectories, lost=0).close()
    for finished in (False, True):
        if finished:
            run.finish_stage("before", {})
        console = Console(record=True, file=io.StringIO())
        build_report(run, console)
        for text in (console.export_text(), run.report.read_text()):
            assert ("The evaluation before RL is not finished." in text) is not finished


@pytest.mark.parametrize(("recipe", "edits"), [("", "0.0"), ("[harness.program]\ncommand = 'agent'\n", "-")])
def test_edits_and_test_runs_of_an_agent_program_are_not_known(tmp_path: Path, recipe: str, edits: str) -> None:
    run, console = RunDirectory(tmp_path), Console(record=True, file=io.StringIO(), width=200)
    stored(run.trajectories, lost=0).close()
    run.recipe.write_text(recipe)
    build_report(run, console)
    row = f"<td>4.0</td><td>0.0</td><td>{edits}</td><td>{edits}</td><td>0.0</td>"
    assert row in run.report.read_text()


@pytest.mark.parametrize("key", ["a", "b"])
def test_a_report_marks_policies_that_were_graded_by_different_keys(tmp_path: Path, key: str) -> None:
    run, console = RunDirectory(tmp_path), Console(record=True, file=io.StringIO(), width=200)
    stored(run.trajectories, lost=0).close()
    run.finish_stage("before", {"held_out_key": "a"})
    run.finish_stage("after", {"held_out_key": key})
    build_report(run, console)
    for text in (console.export_text(), run.report.read_text()):
        assert ("The policies were graded by different held-out keys" in text) is (key == "b")


def test_findings_are_shown_without_control_characters(tmp_path: Path) -> None:
    finding = {"monitor": "tests", "turn": 1, "evidence": "rm \x1b[2J\ud800"}
    store = TrajectoryStore(tmp_path / "trajectories")
    labels = {"flagged": "tests"}
    store.add(Trajectory("g:0", "t", "g", "train", "h", "p", "submitted", labels=labels, findings=[finding]))
    store.close()
    out = io.StringIO()
    assert print_findings(tmp_path / "trajectories", Console(file=out)) == 1
    assert "rm \ufffd[2J\ufffd" in out.getvalue()


def test_a_report_is_written_whatever_an_agent_program_has_sent(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    stored(run.trajectories, lost=0).close()
    store = TrajectoryStore(run.trajectories)
    call = {"function": {"name": "edit", "arguments": '{"text": "half \\ud800 <b>"}'}}
    for name in ("before", "after"):
        group = group_name(name, "t/9")
        messages = [{"role": "assistant", "tool_calls": [call]}]
        told = Trajectory(f"{group}:00", "t/9", group, "eval", "h", "p", "submitted", messages=messages)
        store.add(replace(told, outcome=Outcome(name == "after")))
        run.finish_stage(name, {})
    store.close()
    build_report(run, Console(file=io.StringIO()))
    assert "text=half ? &lt;b&gt;" in run.report.read_text()


def test_a_report_names_the_samples_that_were_drawn_and_the_k_that_is_compared(tmp_path: Path) -> None:
    run, console = RunDirectory(tmp_path), Console(record=True, file=io.StringIO(), width=200)
    stored(run.trajectories, lost=2).close()
    for stage in ("before", "after"):
        run.finish_stage(stage, {})
    assert build_report(run, console)["samples"] == 2
    for text in (console.export_text(), run.report.read_text()):
        assert "8 held-out tasks x 4 samples." in text and "best-of-2" in text and "best-of-4" not in text
