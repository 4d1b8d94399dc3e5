"""Scripts act on what they are told; fixes are edits that apply."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from pathlib import Path

import pytest

from woodshed.harness.registry import TOOLS, ToolRegistry
from woodshed.harness.settings import HarnessSettings
from woodshed.harness.tools.edit_file import occurrences
from woodshed.policy.formats.verbs import verbs_of
from woodshed.recipe.stages import DemonstrationSettings
from woodshed.record.task import Task, TaskError
from woodshed.stages.demonstrator import FOREIGN_TOOL, Action, fix_of, line_script, package_script
from woodshed.stages.edits import edit_line_call
from woodshed.tasks.generators.synthetic import draw_functions
from woodshed.tasks.generators.synthetic.spec import draw_synthetic
from woodshed.tasks.generators.synthetic.write import write_synthetic
from woodshed.tasks.languages.python import mutations

FLAWLESS = DemonstrationSettings(right_edit=1, untested_finish=0, give_up=0, invalid_call=0, wrong_file=0, undo=1)


@pytest.fixture(scope="module")
def synthetic_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    (spec,) = draw_synthetic(1, split="sft", seed=5, workers=1)
    return write_synthetic(spec, tmp_path_factory.mktemp("synthetic") / "t")


def apply_line(task: Task, action: Action) -> str:
    lines = task.workspace_files()[action.arguments["path"]].decode().split("\n")
    lines[action.arguments["line"] - 1] = action.arguments["text"]
    return "\n".join(lines)


def test_a_flawless_demonstration_is_test_read_fix_test_finish(synthetic_task: Task) -> None:
    script = line_script(synthetic_task, random.Random(0), FLAWLESS)
    actions = [next(script)]
    actions += [script.send(r) for r in ("FAIL x", "\n1def", "ok", "PASS 18")]
    assert [a.name for a in actions] == ["run_tests", "read_file", "edit_line", "run_tests", "finish"]
    fixed = apply_line(synthetic_task, actions[2])
    assert synthetic_task.solution_files()[actions[2].arguments["path"]].decode() == fixed
    with pytest.raises(StopIteration):
        script.send("")


def test_of_two_bugs_each_is_repaired_when_a_test_names_its_file(tmp_path: Path) -> None:
    spec = draw_synthetic(1, split="sft", seed=5, two_bugs=1.0, workers=1)[0]
    assert len({bug.module for bug in spec.bugs}) == 2
    task = write_synthetic(spec, tmp_path / "t")
    second, first = (f"{spec.modules[bug.module]}.py" for bug in spec.bugs)
    script = line_script(task, random.Random(0), FLAWLESS)
    results = (f"FAIL {first[:-3]}\nf(1)", "\n1def", "ok", f"FAIL {second[:-3]}\ng(2)", "\n1def", "ok", "PASS 18")
    actions = [next(script), *(script.send(result) for result in results)]
    one = ["run_tests", "read_file", "edit_line"]
    assert [a.name for a in actions] == [*one, *one, "run_tests", "finish"]
    assert [a.arguments["path"] for a in actions if a.arguments] == [first, first, second, second]
    edited = {a.arguments["path"]: apply_line(task, a).encode() for a in actions if a.name == "edit_line"}
    assert edited == task.solution_files()


def test_an_edit_after_which_the_same_file_fails_is_undone(tmp_path: Path) -> None:
    task = write_synthetic(draw_synthetic(1, split="sft", seed=5, two_bugs=1.0, workers=1)[0], tmp_path / "t")
    name = next(iter(task.solution_files()))
    script = line_script(task, random.Random(0), FLAWLESS.model_copy(update={"right_edit": 0.0}))
    actions = [next(script), *(script.send(r) for r in (f"FAIL {name[:-3]}", "\n1def", "ok", f"FAIL {name[:-3]}"))]
    assert [a.name for a in actions] == ["run_tests", "read_file", "edit_line", "run_tests", "undo"]


def test_a_demonstration_may_decline_to_edit(synthetic_task: Task) -> None:
    script = line_script(synthetic_task, random.Random(0), FLAWLESS.model_copy(update={"decline": 1.0}))
    actions = [next(script), *(script.send(r) for r in ("FAIL x", "\n1def"))]
    assert [a.name for a in actions] == ["run_tests", "read_file", "finish"]


def test_a_foreign_tool_is_tried_before_each_look_at_the_file(synthetic_task: Task) -> None:
    script = line_script(synthetic_task, random.Random(0), FLAWLESS.model_copy(update={"foreign_tool": 1.0}))
    answers = ("FAIL x", "error: unknown tool", "\n1def", "error: no such line")
    actions = [next(script), *(script.send(answer) for answer in answers)]
    assert [a.name for a in actions] == ["run_tests", FOREIGN_TOOL, "read_file", "edit_line", FOREIGN_TOOL]
    assert actions[1].weight == 1.0, "the habit is learned"
    assert FOREIGN_TOOL not in TOOLS


def test_noise_is_there_and_episodes_end(synthetic_task: Task) -> None:
    settings = DemonstrationSettings()
    lengths, names = [], set()
    for seed in range(200):
        script = line_script(synthetic_task, random.Random(seed), settings)
        action, count = next(script), 1
        try:
            while True:
                names.add(action.name)
                action = script.send("FAIL x" if action.name == "run_tests" else "ok")
                count += 1
        except StopIteration:
            lengths.append(count)
    assert names == {"run_tests", "read_file", "edit_line", "undo", "finish"}
    assert min(lengths) >= 4 and 4 < max(lengths) <= 4 + 5 * 5 + 1


def test_rejected_edits_weigh_nothing_and_wrong_ones_little(synthetic_task: Task) -> None:
    """The right edit weighs 1; an edit that would be rejected, in any of its forms, 0."""
    fix = fix_of(synthetic_task)
    settings = DemonstrationSettings(wrong_edit_weight=0.25, broken_edit=0.5, invalid_call=0.3)
    seen = {0.0: 0, 0.25: 0, 1.0: 0}
    for seed in range(150):
        script = line_script(synthetic_task, random.Random(seed), settings)
        action = next(script)
        try:
            while True:
                if action.name == "edit_line":
                    seen[action.weight] += 1
                    right = action.arguments["line"] == fix.line and action.arguments["text"] == fix.new_line
                    assert right == (action.weight == 1.0)
                    if action.weight == 0.25:
                        compile(apply_line(synthetic_task, action), "x", "exec")
                else:
                    missing = (
                        action.name == "read_file" and action.arguments["path"] not in synthetic_task.workspace_files()
                    )
                    assert action.weight == (0.0 if missing else 1.0)
                action = script.send("FAIL x" if action.name == "run_tests" else "ok")
        except StopIteration:
            pass
    assert min(seen.values()) > 10


def test_the_file_is_read_again_before_the_next_attempt(synthetic_task: Task) -> None:
    settings = DemonstrationSettings(
        right_edit=0, invalid_call=0, give_up=0, untested_finish=0, undo=1, reread=1, wrong_file=0, max_edits=3
    )
    for edited in ("ok", "error: syntax error"):
        script = line_script(synthetic_task, random.Random(1), settings)
        names = [next(script).name]
        try:
            while True:
                names.append(script.send({"run_tests": "FAIL x", "edit_line": edited}.get(names[-1], "ok")).name)
        except StopIteration:
            pass
        attempt = ["edit_line", "run_tests", "undo", "read_file"] if edited == "ok" else ["edit_line", "read_file"]
        assert names[:-1][: 2 + 2 * len(attempt)] == ["run_tests", "read_file", *attempt, *attempt]


def test_fix_of_makes_the_solution_by_search_and_replace(synthetic_task: Task) -> None:
    fix = fix_of(synthetic_task)
    assert fix.before.count(fix.old_unique) == 1
    assert fix.before.replace(fix.old_unique, fix.new_unique) == synthetic_task.solution_files()[fix.path].decode()


def play(task: Task, seed: int, settings: DemonstrationSettings, view: int, *, by_line: bool = False) -> list[Action]:
    """The actions of a package script whose tests always fail."""
    script = package_script(task, random.Random(seed), settings, view, by_line=by_line)
    actions = [next(script)]
    with contextlib.suppress(StopIteration):
        while True:
            actions.append(script.send("1 failed" if actions[-1].name == "run_tests" else "ok"))
    return actions


def test_a_package_script_searches_only_for_what_it_is_not_told(synthetic_task: Task) -> None:
    fix = fix_of(synthetic_task)
    assert [a.name for a in play(synthetic_task, 1, FLAWLESS, 400)][:4] == [
        "run_tests",
        "grep",
        "read_file",
        "edit_file",
    ]
    told = dataclasses.replace(synthetic_task, instruction=f"`f` in {fix.path}, line {fix.function_line}, is wrong")
    actions = play(told, 1, FLAWLESS, 400)
    assert [a.name for a in actions][:3] == ["read_file", "edit_file", "run_tests"]
    assert actions[0].arguments == {"path": fix.path, "offset": fix.function_line}
    assert actions[1].arguments == {"path": fix.path, "old_string": fix.old_unique, "new_string": fix.new_unique}


def test_a_package_script_edits_by_line_where_it_must(synthetic_task: Task) -> None:
    script = package_script(synthetic_task, random.Random(1), FLAWLESS, 400, by_line=True)
    action = next(script)
    while action.name != "edit_line":
        action = script.send("1 failed")
    fix = fix_of(synthetic_task)
    assert apply_line(synthetic_task, action).encode() == synthetic_task.solution_files()[fix.path]
    after = script.send("ok") and script.send("1 failed")
    assert after == action  # overwrites the line, so there is nothing to undo


def test_a_package_script_that_is_told_the_line_stays_there(synthetic_task: Task) -> None:
    settings = DemonstrationSettings(right_edit=0, give_up=0, untested_finish=0, invalid_call=0, undo=0)
    fix = fix_of(synthetic_task)
    told = dataclasses.replace(synthetic_task, instruction=f"{fix.path}, line {fix.line}: {fix.old}")
    reads = {tuple(a.name for a in play(told, seed, settings, 1, by_line=True)).count("read_file") for seed in range(9)}
    assert reads == {1}
    for by_line in (True, False):
        text = fix.before
        for action in play(told, 3, settings, 1, by_line=by_line):
            if action.name == "edit_line":
                assert action.arguments["line"] == fix.line
            elif action.name == "edit_file":  # every one applies: what an attempt changed is put back first
                assert text.count(action.arguments["old_string"]) == 1
                text = text.replace(action.arguments["old_string"], action.arguments["new_string"])


def test_a_package_script_edits_only_what_it_has_read(synthetic_task: Task) -> None:
    """A demonstration that knows more than the policy would teach it to guess."""
    settings = DemonstrationSettings(right_edit=0.3, give_up=0, untested_finish=0, invalid_call=0)
    fix, weights = fix_of(synthetic_task), set()
    for seed in range(40):
        seen: set[int] = set()
        for action in play(synthetic_task, seed, settings, 2):
            if action.name == "read_file":
                seen |= set(range(action.arguments["offset"], action.arguments["offset"] + 2))
            elif action.name == "edit_file" and action.arguments["old_string"] in fix.before:
                weights.add(action.weight)
                place = fix.before.index(action.arguments["old_string"])
                first = fix.before[:place].count("\n") + 1
                assert set(range(first, first + action.arguments["old_string"].count("\n") + 1)) <= seen
    assert weights == {0.0, 1.0}


def test_fix_of_refuses_a_solution_that_changes_nothing(synthetic_task: Task, tmp_path: Path) -> None:
    for name, data in synthetic_task.solution_files().items():
        (synthetic_task.path / "environment" / "workspace" / name).write_bytes(data)
    with pytest.raises(TaskError, match="changes nothing"):
        fix_of(Task.load(synthetic_task.path))


def test_every_mutation_is_repaired_by_its_differing_words() -> None:
    """As the policy writes them: the compact text of the call is read back, and occurs once in the line."""
    registry = ToolRegistry(["edit_words"], HarnessSettings(tools=("edit_words", "finish")))
    verb = verbs_of(registry.schemas()).by_name["edit_words"]
    count = 0
    for function in draw_functions(60, 5, "sft"):
        for mutation in mutations(function.source):
            call = edit_line_call(["edit_words"], "a.py", mutation.line, mutation.after, mutation.before)
            name, arguments = call
            assert name == "edit_words" and "{" not in verb.write(arguments)
            assert verb.read(verb.write(arguments).removeprefix("edit")) == arguments
            (at,) = occurrences(mutation.after, arguments["old"])
            end = at + len(arguments["old"])
            assert mutation.after[:at] + arguments["new"] + mutation.after[end:] == mutation.before
            count += 1
    assert count > 500


def test_a_demonstration_uses_the_edit_tool_that_there_is(tmp_path: Path) -> None:
    (spec,) = draw_synthetic(1, split="sft", seed=6, workers=1)
    task = write_synthetic(spec, tmp_path / "t")
    for seed in range(100):
        script = line_script(task, random.Random(seed), DemonstrationSettings(), ["edit_words"])
        action, names = next(script), set[str]()
        with contextlib.suppress(StopIteration):
            while True:
                names.add(action.name)
                action = script.send("FAIL x" if action.name == "run_tests" else "ok")
        assert "edit_words" in names and names <= {
            "run_tests",
            "read_file",
            "edit_words",
            "edit_line",
            "undo",
            "finish",
        }
