"""Reward terms: what each counts, and how a recipe names, weighs and caps them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Effort, Outcome, ToolEvent, Trajectory
from woodshed.rollout.rewards import RewardError, load_term, names, raw_outcome
from woodshed.rollout.rewards.effort import effort_cost

PLAIN = """name = "plain"
[harness]
output = { separator = "" }
"""
RECIPE = """
name = "terms"
[harness]
output = { separator = "" }
[rl.rewards]
outcome = 2.0
invalid_call = 0.05
unfinished_todos = { weight = 0.1 }
untested_finish = { weight = 3.0, cap = 0.5 }
[rl.rewards.effort]
weight = 0.5
options = { k = 2.0, q = 0.3, turns = 0.2, tool_calls = 0.0, tool_call_tokens = 0.01 }
"""
YES, NO = Outcome(resolved=True), Outcome(resolved=False)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path, "tests/toy", "repair it", TaskInfo(test_command="make check"), {})


def episode(*events: ToolEvent, said: str = "", status: Any = "submitted", **effort: int) -> Trajectory:
    messages = [{"role": "assistant", "content": said}] if said else []
    return Trajectory(
        "i", "t", "g", "train", "h", "p", status, events=list(events), messages=messages, effort=Effort(**effort)
    )


def call(name: str, result: str = "", error: str | None = None, **arguments: Any) -> ToolEvent:
    return ToolEvent(0, name, arguments, result, error)


EDIT, TEST = call("edit_line", path="a.py", line=1, text="x"), call("run_tests")


def test_every_term_is_reached_from_a_recipe(tmp_path: Path, task: Task) -> None:
    (tmp_path / "terms.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "terms.toml")
    reward = recipe.rl.make_reward()
    todos = [{"id": "1", "status": "completed"}, {"id": "2", "status": "pending"}]
    events = [call("todo_write", todos=todos, merge=False), call("edit_file", path="a.py")]
    run = episode(*events, turns=3, tool_calls=40, tool_call_tokens=50, invalid_calls=2)
    expected = {
        "outcome": 2.0,
        "invalid_call": pytest.approx(-0.1),
        "effort": pytest.approx(-0.5 * effort_cost(0.2 * 3 + 0.01 * 50, k=2.0, q=0.3)),
        "unfinished_todos": pytest.approx(-0.05),
        "untested_finish": -0.5,
    }
    assert reward(task, run, YES) == expected
    (tmp_path / "again.toml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.toml").rl.make_reward()(task, run, YES) == expected
    changed = load_recipe(tmp_path / "terms.toml", ["rl.rewards.invalid_call=0", "rl.rewards.effort.weight=0"])
    assert set(changed.rl.make_reward()(task, run, NO)) == {"outcome", "unfinished_todos", "untested_finish"}
    assert type(recipe.rl).model_validate({"rewards": {"outcome": 0}}).make_reward()(task, run, YES) == {"outcome": 0.0}


def test_a_recipe_that_names_no_terms_rewards_the_outcome_alone(tmp_path: Path, task: Task) -> None:
    (tmp_path / "plain.toml").write_text(PLAIN)
    reward = load_recipe(tmp_path / "plain.toml").rl.make_reward()
    assert reward(task, episode(turns=9, invalid_calls=3), YES) == {"outcome": 1.0}
    assert raw_outcome(task, episode(invalid_calls=3), NO) == {"outcome": 0.0}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("invalid_cal = 0.05", "did you mean 'invalid_call'"),
        ("effort = { weight = 1.0, options = { p = 1 } }", "no option 'p'; known: k, q, thinking_tokens"),
        ("effort = { weight = 1.0, cap = 0 }", "greater than 0"),
        ("effort = inf", "finite"),
        ("effort = true", "effort"),
        ("effort = { weigth = 1.0 }", "weigth"),
        ("effort = -0.1", "must be at least 0"),
        ("outcome = -1", "must be at least 0"),
        ("effort = { weight = 1.0, options = { k = 0.0 } }", "k > 0"),
        ("effort = { weight = 1.0, options = { turns = -1.0 } }", "at least 0"),
        ("effort = { weight = 1.0, options = { turns = nan } }", "turns.float: Input should be a finite number"),
        ("invalid_call = { weight = 1.0, options = { most = -3 } }", "would be paid 3"),
        ('invalid_call = { weight = 1.0, options = { most = "3" } }', "wrong type"),
    ],
)
def test_what_cannot_be_is_said_with_file_and_line(written: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(f"{PLAIN}[rl.rewards]\n{written}\n")
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe(tmp_path / "bad.toml")
    assert "bad.toml:" in str(error.value)


OWN = """
def short(task, trajectory, outcome, *, most=3):
    return -float(max(0, trajectory.effort.edits - most))

def wrong(task, trajectory, outcome):
    return float("nan") if outcome.resolved else 1 / 0

def endless(task, trajectory, outcome):
    return float("inf") if outcome.resolved else float("-inf")

def praise(task, trajectory, outcome):
    return float(trajectory.effort.edits)

def other(outcome):
    return 0.0

number = 3
"""


def test_a_term_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    (tmp_path / "my_rewards.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(
        PLAIN + '[rl.rewards."my_rewards:short"]\nweight = 0.5\ncap = 1.0\noptions = { most = 1 }\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = load_recipe(tmp_path / "own.toml")
    (tmp_path / "again.toml").write_text(dump_recipe(recipe))
    reward = load_recipe(tmp_path / "again.toml").rl.make_reward()
    assert reward(task, episode(edits=2), YES) == {"outcome": 1.0, "my_rewards:short": -0.5}
    assert reward(task, episode(edits=9), NO) == {"outcome": 0.0, "my_rewards:short": -1.0}
    for name, said in (("other", "cannot be called"), ("number", "no function"), ("gone", "cannot be loaded")):
        with pytest.raises(ValueError, match=said):
            load_term(f"my_rewards:{name}")
    for outcome, said in ((YES, "finite number"), (NO, "ZeroDivisionError")):
        terms = type(recipe.rl).model_validate({"rewards": {"my_rewards:wrong": 1.0}})
        with pytest.raises(RewardError, match=rf"rl.rewards.my_rewards:wrong.*{said}"):
            terms.make_reward()(task, episode(), outcome)
    for outcome in (YES, NO):
        with pytest.raises(RewardError, match="finite number"):
            type(recipe.rl).model_validate({"rewards": {"my_rewards:endless": 1.0}}).make_reward()(
                task, episode(), outcome
            )
    praised = type(recipe.rl).model_validate({"rewards": {"my_rewards:praise": {"weight": 0.5, "cap": 1.0}}})
    assert praised.make_reward()(task, episode(edits=1), NO) == {"outcome": 0.0, "my_rewards:praise": 0.5}
    assert praised.make_reward()(task, episode(edits=9), NO) == {"outcome": 0.0, "my_rewards:praise": 1.0}


def test_a_term_that_cannot_be_loaded_stops_a_run_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(PLAIN + '[rl]\nrewards = { "nowhere:term" = 1.0 }\n')
    command = [sys.executable, "-m", "woodshed.cli", "run", "own.toml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "rl.rewards.nowhere:term" in done.stdout + done.stderr
    assert not list((tmp_path / "run").glob("stages/*.json"))


def test_failures_that_are_repeated(task: Task) -> None:
    term = load_term("repeated_failure")
    miss = call("edit_file", "", "no_match", path="a.py", old_string="x", new_string="y")
    other = call("edit_file", "", "no_match", path="a.py", old_string="z", new_string="y")
    assert term(task, episode(miss), NO) == 0
    assert term(task, episode(miss, other, miss, miss), NO) == -2
    assert term(task, episode(miss, call("edit_line", path="a.py", line=1, text="x"), miss), NO) == 0
    assert term(task, episode(miss, call("read_file", path="a.py"), miss), NO) == -1
    broken = call("run_command", "boom\n[exit code 1]", command="make")
    assert term(task, episode(broken, broken), NO) == -1
    assert term(task, episode(broken, call("run_command", "fixed", command="make clean"), broken), NO) == 0
    assert term(task, episode(broken, call("edit_line", path="a.py", line=1, text="x"), broken), NO) == 0
    assert term(task, episode(broken, call("delete_file", path="a.py"), broken), NO) == 0
    unparsed = ToolEvent(0, "", None, "", "malformed_call", raw="<call>")
    assert term(task, episode(unparsed, unparsed), NO) == -1
    assert term(task, episode(*[miss] * 20), NO) == -5
    assert load_term("repeated_failure", {"most": 2})(task, episode(*[miss] * 20), NO) == -2


FAILED_RUNS = (
    call("run_tests", "FAIL test_a: expected 3, got 4"),
    call("run_tests", "== 1 failed, 2 passed in 0.1s =="),
    replace(call("run_tests", "Traceback (most recent call last):\nValueError"), exit_code=1),
    replace(call("run_tests", "2 of 3 checks hold"), exit_code=2),
    call("run_tests", "error: timeout: stopped after 60 s", "timeout"),
    call("run_tests", "no tests ran in 0.01s"),
)


@pytest.mark.parametrize("failed", FAILED_RUNS)
def test_failing_tests_that_are_run_again(failed: ToolEvent, task: Task) -> None:
    term = load_term("repeated_failure")
    assert term(task, episode(failed, failed, call("read_file", path="a.py"), failed), NO) == -2
    assert term(task, episode(failed, EDIT, failed), NO) == 0


def test_passing_tests_may_be_run_again(task: Task) -> None:
    term = load_term("repeated_failure")
    for result, code in (("2 passed in 0.1s", 0), ("PASS 18", None), ("3 of 3 checks hold", 0), ("[no output]", None)):
        passed = replace(call("run_tests", result), exit_code=code)
        assert term(task, episode(passed, passed), NO) == 0, result


READS = """\
ls
ls -la 2>&1 | head
cat a.py 2>/dev/null
grep -rn x . >/dev/null
find . -name '*.py' | xargs cat
git status && git diff
sed -n 1,3p a.py
true; :
echo 'no $HOME'
pwd"""
MAY_CHANGE = """\
cd pkg
touch x
pip install x
cat a.py > b.py
cat a.py | tee b.py
find . -name '*.pyc' -delete
find . | xargs rm
echo $(touch x)
echo "`touch x`"
git stash
sed -i s/a/b/ a.py
awk '{print > "x"}' a.py
python fix.py
sleep 1"""


@pytest.mark.parametrize("command", [*READS.splitlines(), *MAY_CHANGE.splitlines(), "ls " + "x" * 9000])
def test_what_only_reads_is_no_change_between_two_failures(command: str, task: Task) -> None:
    broken = replace(call("run_command", "boom\n[exit code 2]", command="make"), exit_code=2)
    between = replace(call("run_command", "done", command=command), exit_code=0)
    expected = -1 if command in READS.splitlines() else 0
    assert load_term("repeated_failure")(task, episode(broken, between, broken), NO) == expected
    refused = replace(between, result="no\n[exit code 1]", exit_code=1)
    assert load_term("repeated_failure")(task, episode(broken, refused, broken), NO) == -1, "it changed nothing"


def test_todos_that_are_open(task: Task) -> None:
    term = load_term("unfinished_todos")

    def wrote(todos: object, merge: bool = False, error: str | None = None) -> ToolEvent:
        return call("todo_write", "", error, todos=todos, merge=merge)

    first = wrote([{"id": "1", "status": "completed"}, {"id": "2", "status": "pending"}])
    assert term(task, episode(first), NO) == -0.5
    assert term(task, episode(first, wrote([{"id": "2", "status": "completed"}], merge=True)), NO) == 0
    assert term(task, episode(first, wrote([], error="invalid_arguments")), NO) == -0.5
    assert term(task, episode(first, wrote([{"id": "2", "status": "cancelled"}], merge=True)), NO) == 0
    assert term(task, episode(first, wrote([{"id": "3", "status": "completed"}])), NO) == 0, "a new list, not merged"
    assert term(task, episode(), NO) == term(task, episode(wrote("nonsense")), NO) == 0


def test_submitting_untested(task: Task) -> None:
    term = load_term("untested_finish")
    assert term(task, episode(EDIT), NO) == term(task, episode(TEST, EDIT), NO) == -1
    assert term(task, episode(EDIT, TEST), NO) == term(task, episode(), NO) == 0
    assert term(task, episode(EDIT, status="limit"), NO) == 0
    assert term(task, episode(TEST, call("delete_file", path="a.py")), NO) == -1
    refused = call("edit_line", "", "no_such_line", path="a.py", line=9, text="x")
    assert term(task, episode(EDIT, TEST, refused), NO) == term(task, episode(refused), NO) == 0


RUN_TESTS = """\
python -m pytest -q x.py
cd pkg && python3 -m unittest
timeout 60 pytest
PYTHONPATH=. pytest | tail -3
/usr/bin/python3.12 -m pytest
npm test
npm run test
yarn test
node --test
npx mocha
./node_modules/.bin/mocha test
env A=1 tox
true; pytest
make check
(make check)"""
RUN_AFTER_TEXT = (
    "ls\npytest",
    "# run the tests, that's all\npytest",
    "cd pkg  # it's here\npytest",
    "echo a#b && pytest",
    "cat > a.py <<'EOF'\n# it's new\nEOF\npytest",
)
NAME_TESTS = """\
ls tests
echo pytest
cat pytest.ini
grep -rn pytest .
pytest --version
pip install pytest
python -m pytest --collect-only
make
npm run build
which tox
timeout 5
env A=1
echo 'pytest
# pytest"""


@pytest.mark.parametrize("command", [*RUN_TESTS.splitlines(), *RUN_AFTER_TEXT])
def test_commands_that_run_tests(command: str, task: Task) -> None:
    assert load_term("untested_finish")(task, episode(EDIT, call("run_command", command=command)), NO) == 0


@pytest.mark.parametrize("command", [*NAME_TESTS.splitlines(), "", "cat <<E\npytest\nE"])
def test_commands_that_name_tests_only(command: str, task: Task) -> None:
    assert load_term("untested_finish")(task, episode(EDIT, call("run_command", command=command)), NO) == -1


def test_a_test_run_that_found_no_test(task: Task) -> None:
    nothing = call("run_command", "no tests ran in 0.01s\n[exit code 5]", command="pytest nothing.py")
    assert load_term("untested_finish")(task, episode(EDIT, nothing), NO) == -1


@pytest.mark.parametrize("tool", ["run_command", "bash"])
@pytest.mark.parametrize(
    ("commands", "value"),
    [
        (["sed -i s/1/2/ a.py"], -1),
        (["sed -i s/1/2/ a.py", "pytest"], 0),
        (["sed -i s/1/2/ a.py && pytest"], 0),
        (["pytest", "echo 1 > a.py"], -1),
        (["pytest", "grep -n 1 a.py"], 0),
        (["pytest", "echo 1 > /tmp/notes"], 0),
    ],
)
def test_edits_by_the_shell_are_to_be_tested_too(commands: list[str], value: float, tool: str, task: Task) -> None:
    events = [call(tool, command=command) for command in commands]
    assert load_term("untested_finish")(task, episode(*events), NO) == value


TRUE_WORDS = """\
I did not run the tests.
Fixed the rounding.
Please run the tests
They should pass
Tests cannot pass yet.
Run the tests with pytest
I never ran the tests.
I don't know whether the tests pass.
Please check that all tests pass.
The password test is in a.py
"""


def test_claims_about_tests(task: Task) -> None:
    term = load_term("unfounded_claim")
    for text in ("Fixed. All tests pass.", "The tests are green now", "I ran the tests.", "Verified with the tests"):
        assert term(task, episode(said=text), NO) == -1, text
        assert term(task, episode(call("run_tests"), said=text), NO) == 0
        assert term(task, episode(call("finish", message=text)), NO) == -1
        assert term(task, episode(call("run_command", command="echo pytest"), said=text), NO) == -1
    for text in TRUE_WORDS.splitlines():
        assert term(task, episode(said=text), NO) == 0, text
    failed = call("run_tests", "error: timeout", "timeout")
    assert term(task, episode(failed, said="All tests pass."), NO) == -1


def test_submitting_in_silence(task: Task) -> None:
    term = load_term("silent_finish")
    assert term(task, episode(call("finish", message="")), NO) == term(task, episode(), NO) == -1
    assert term(task, episode(call("finish", message="Rounding in area() is to two digits.")), NO) == 0
    assert term(task, episode(status="limit"), NO) == 0
    assert [term(task, episode(said="x" * length), NO) for length in (19, 20)] == [-1, 0]


def test_every_behaviour_is_bounded_and_costs_less_than_nothing(task: Task) -> None:
    """A built-in term other than ``outcome`` never adds to a reward, and takes off at most 10 times its weight."""
    said = {"path": "a.py", "command": "ls", "todos": [{"id": "1"}], "message": "tests pass"}
    tools = ("edit_file", "run_command", "todo_write", "finish")
    noise = [call(name, "x", error, **said) for name in tools for error in (None, "no_match")] * 200
    for name in set(names()) - {"outcome", "effort"}:
        assert -10 <= load_term(name)(task, episode(*noise, invalid_calls=10**6), YES) <= 0, name
