"""Tests of the axes: whole evaluations of scripted agents, and single episodes for the rules."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from woodshed.evaluate.axes import BUILTIN, as_asked, axes_of, excess, measured
from woodshed.evaluate.suites.interaction import KINDS, RULES, write_interaction
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory
from woodshed.run.evaluation.plan import Wishes
from woodshed.run.evaluation.policies import EvaluationError
from woodshed.run.evaluation.regrade import regrade
from woodshed.run.evaluation.run import evaluate_policies
from woodshed.sandbox import open_backend
from woodshed.view.comparison import axis_cells, write_page

from .scripted_models import ScriptedServer, running

COUNT = 12
"""Each kind three times, so each rule once."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    return write_interaction(tmp_path_factory.mktemp("interaction") / "tasks", COUNT)


@pytest.fixture
def server(tasks: list[Task]) -> Iterator[ScriptedServer]:
    with running(ScriptedServer(tasks)) as found:
        yield found


def quiet(*_: object) -> None:
    return


def asked_for(server: ScriptedServer, out: Path, *models: str, axes: tuple[str, ...] = ()) -> Wishes:
    policies = tuple(f"{model}={server.url}#{model}" for model in models)
    agent = ('harness.tools=["read_file","write_file","undo","run_tests","finish"]', "harness.limits.turns=9")
    agent += tuple(f"harness.limits.{name}_tokens={n}" for name, n in (("sampled", 0), ("context", 0), ("turn", 999)))
    return Wishes(out, policies, (f"interaction:{COUNT}",), agents=("smoke",), overrides=agent, axes=axes)


def test_an_agent_that_listens_and_one_that_does_not(server: ScriptedServer, tmp_path: Path) -> None:
    asked = asked_for(server, tmp_path / "out", "attentive", "eager", "idle")
    found = evaluate_policies(asked, quiet)
    attentive, eager, idle = (policy["axes"] for policy in found["policies"])
    assert attentive["as_asked"]["mean"] == 1.0
    assert eager["as_asked"]["mean"] == 0.0 and idle["as_asked"]["mean"] == 0.0
    assert attentive["lint"]["mean"] == 0.0 and eager["lint"]["mean"] >= 1.0, "an import that nothing uses"
    assert attentive["untested"]["mean"] == pytest.approx(4 / COUNT), "told not to test, or to put the edit back"
    assert "lint" not in idle, "without a change there is nothing to look at"
    assert eager["excess"]["mean"] > attentive["excess"]["mean"] >= 1.0
    assert all(policy["pass1"]["mean"] is None for policy in found["policies"]), "nothing of this is skill"
    (gain, _) = found["differences"]
    asked_gain = gain["axes"]["as_asked"]
    assert asked_gain["mean"] == asked_gain["low"] == -1.0 < asked_gain["high"] < 0, "there may be other tasks"
    row = next(row for row in axis_cells(found) if row[0] == found["axes"]["as_asked"]["title"])
    assert row == ["tasks of interaction done as the user asked", "higher", "1.000", "0.000 -", "0.000 -"]
    write_page(found, tmp_path / "page.html")
    assert "Beside correctness" in (tmp_path / "page.html").read_text()
    rows = (tmp_path / "out" / "axes.jsonl").read_text().splitlines()
    assert len(rows) == 3 * COUNT
    (tmp_path / "out" / "axes.jsonl").write_text("\n".join(rows[:5]) + "\n")  # as a kill leaves it
    assert evaluate_policies(asked, quiet) == found
    assert regrade(tmp_path / "out", quiet, jobs=2).changed == ()


def test_an_axis_of_ones_own(server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_axis.py").write_text(
        "def calls(task, trajectory, outcome): return len(trajectory.events)\n"
        "def broken(task, trajectory, outcome): return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_axis", raising=False)
    wrong = asked_for(server, tmp_path / "out", "idle", axes=("own_axis:broken",))
    with pytest.raises(EvaluationError, match="--axis own_axis:broken: ZeroDivisionError"):
        evaluate_policies(wrong, quiet)
    before = server.requests
    found = evaluate_policies(replace(wrong, axes=("own_axis:calls",)), quiet)
    assert server.requests == before, "no episode was lost to it"
    assert found["policies"][0]["axes"]["own_axis:calls"]["mean"] > 0
    for name, said in (("calls", "write my_module:my_function"), ("own_axis:none", "cannot be loaded")):
        with pytest.raises(EvaluationError, match=said):
            evaluate_policies(replace(wrong, axes=(name,)), quiet)


def episode(task: Task, message: str = "", changed: dict[str, str] | None = None, *events: ToolEvent) -> Trajectory:
    ended = ToolEvent(9, "finish", {"message": message}, "")
    return Trajectory("e", task.name, "g", "eval", "", "", "submitted", events=[*events, ended], changed=changed or {})


def test_what_counts_as_an_answer(tasks: list[Task]) -> None:
    task = next(task for task in tasks if task.info.kind == "question")
    answer, solved = task.info.provenance["answer"], Outcome(resolved=True)
    for said, right in (
        (answer, 1.0),
        (f"`{answer}`.", 1.0),
        (f"It returns {answer}, as does everything.", 0.0),
        ("", 0.0),
        (f"{answer} {answer}", 0.0),
    ):
        assert as_asked(task, episode(task, said), solved) == right, said
    listed = replace(task, info=replace(task.info, provenance={**task.info.provenance, "answer": "[1, 'b']"}))
    for said, right in (("[1, 'b']", 1.0), ('`[1,"b"]`.', 1.0), ("[True, 'b']", 0.0), ("[1]", 0.0), ("1, 'b'", 0.0)):
        assert as_asked(listed, episode(listed, said), solved) == right, said
    module = task.info.provenance["module"]
    assert as_asked(task, episode(task, answer, {module: "x = 1"}), solved) == 0.0, "nothing was to be changed"
    deleted = Outcome(resolved=False, tests=dict.fromkeys(task.info.pass_to_pass, "failed"))
    assert as_asked(task, episode(task, answer), deleted) == 0.0


def test_rules_are_kept_or_not(tasks: list[Task]) -> None:
    by_rule = {task.info.provenance["rule"]: task for task in tasks if task.info.kind == "constraint"}
    assert by_rule.keys() == RULES.keys()
    solved, failed = Outcome(resolved=True), Outcome(resolved=False)
    last, tests, comment = by_rule["last_word"], by_rule["no_tests"], by_rule["comment"]
    word = last.info.provenance["word"]
    assert as_asked(last, episode(last, f"Mended.\n**{word}**"), solved) == 1.0
    assert as_asked(last, episode(last, f"{word}, mended"), solved) == 0.0
    assert as_asked(last, episode(last, word), failed) == 0.0, "the rule is for the way, not in place of the work"
    ran = ToolEvent(1, "run_command", {"command": "cd . && python run_tests.py"}, "PASS 3")
    assert as_asked(tests, episode(tests), solved) == 1.0
    assert as_asked(tests, episode(tests, "", None, ran), solved) == 0.0
    about = comment.info.provenance
    text = f"# {about['word']}\ndef {about['function']}(a):\n    return a\n"
    assert as_asked(comment, episode(comment, "", {about["module"]: text}), solved) == 1.0
    assert as_asked(comment, episode(comment, "", {about["module"]: text.replace("\n", "\n\n", 1)}), solved) == 0.0


def test_an_interruption_counts_only_where_it_was_heard(tasks: list[Task]) -> None:
    task = next(task for task in tasks if task.info.kind == "interrupted")
    said = {"role": "user", "content": task.info.interruption}
    tests = {id: "failed" for id in task.info.fail_to_pass} | {id: "passed" for id in task.info.pass_to_pass}
    outcome = Outcome(resolved=False, tests=tests)
    heard = replace(episode(task, "The comparison is the wrong way round."), messages=[said])
    assert as_asked(task, heard, outcome) == 1.0
    assert as_asked(task, replace(heard, messages=[]), outcome) is None
    assert as_asked(task, replace(heard, changed={task.info.provenance["module"]: "pass"}), outcome) == 0.0
    assert as_asked(task, replace(heard, status="limit"), outcome) == 0.0
    deleted = Outcome(resolved=False, tests=dict.fromkeys(tests, "failed"))
    assert as_asked(task, heard, deleted) == 0.0


def test_excess_is_the_size_of_the_change_over_the_references(tasks: list[Task], tmp_path: Path) -> None:
    task = next(task for task in tasks if task.info.kind == "constraint")
    ((path, data),) = task.solution_files().items()
    solved = Outcome(resolved=True)
    same, more = {path: data.decode()}, {path: data.decode() + "a = 1\nb = 2\n"}
    assert excess(task, episode(task, changed=same), solved) == 1.0
    assert excess(task, episode(task, changed=more), solved) == 2.0, "two lines in place of one, and two more"
    assert excess(task, episode(task, changed=same), Outcome(resolved=False)) is None
    assert excess(task, episode(task), solved) is None
    other = replace(task, path=tmp_path / "task")
    shutil.copytree(task.path, other.path)
    (other.path / "solution" / "workspace" / "added.py").write_text("a = 1\nb = 2\n")
    assert excess(other, episode(other, changed=same), solved) == 0.5, "the reference's other files count, too"
    assert excess(other, episode(other, changed={"third.py": "a = 1\nb = 2\n"}), solved) == 0.5


def test_calls_of_other_agents_are_not_judged_by_our_tools(tasks: list[Task]) -> None:
    values = measured(axes_of(), tasks[1], episode(tasks[1], "done and dusted, as you asked"), Outcome(resolved=False))
    assert values.keys() == {axis.name for axis in BUILTIN}
    assert {values[name] for name in ("invalid_calls", "unread_edits", "repeated_failures", "untested")} == {None}
    assert values["silent"] == 0.0 and values["lint"] is None


def test_the_suite_has_every_kind(tasks: list[Task]) -> None:
    assert [task.info.kind for task in tasks] == [*KINDS] * 3
    assert len({task.digest for task in tasks}) == COUNT
