"""A recipe whose tasks come from a source outside the tree, named by reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_runs import SMOKE

from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe
from woodshed.record.run_directory import RunDirectory, write_text
from woodshed.record.task import TaskError
from woodshed.sandbox import open_backend
from woodshed.stages.__main__ import main
from woodshed.stages.failures import StageFailed
from woodshed.stages.make_tasks import make_tasks
from woodshed.stages.tasks import load_split

SOURCE = """
import json

from woodshed.record.task import TaskInfo, save_task


def _task(folder, name, split, *, fixed=True, title=""):
    a, b, c = (sum(map(ord, name)) * n % 997 + 2 for n in (3, 5, 7))
    good = f"def f(x):\\n    if x > {a}:\\n        return x * {b} + {c}\\n    return {b} - x\\n"
    bad = good.replace("+", "-")
    inputs = [a + 1, a + 2, 0, 1]
    cases = [[[x], x * b + c if x > a else b - x] for x in inputs]
    info = TaskInfo(split=split, grader="cases", kind="operator", submission=("f.py",),
                    fail_to_pass=("f::0", "f::1"), pass_to_pass=("f::2", "f::3"))
    return save_task(folder / name, name=title or f"mine/{name}", instruction="fix f.py", info=info,
                     workspace={"f.py": bad.encode()},
                     tests={"test.sh": b"exit 1\\n",
                            "cases.json": json.dumps({"f": {"function": "f", "cases": cases}}).encode()},
                     solution={"f.py": (good if fixed else bad).encode()})


def good(folder, split, count, seed):
    return [_task(folder, f"{split}-{seed}-{number}", split) for number in range(count)]


def unsolved(folder, split, count, seed):
    for number in range(count):
        yield _task(folder, f"{split}-{number}", split, fixed=split == "train")


def twice(folder, split, count, seed):
    return [_task(folder, f"{split}-{number}", split, title="mine/same") for number in range(count)]


def alike(folder, split, count, seed):
    return [_task(folder, f"{split}-{number}", split, title=title) for number, title in enumerate(("a.b/c", "a/b.c"))]


def across(folder, split, count, seed):
    return [_task(folder, f"{split}-{number}", split, title=f"mine/{number}") for number in range(count)]


def few(folder, split, count, seed):
    return good(folder, split, count - 1, seed)


def deep(folder, split, count, seed):
    return good(folder / "more", split, count, seed)


def mislabelled(folder, split, count, seed):
    return good(folder, "train", count, seed)


def raising(folder, split, count, seed):
    raise KeyError("no such data set")


def exits(folder, split, count, seed):
    raise SystemExit


def paths(folder, split, count, seed):
    return [task.path for task in good(folder, split, count, seed)]


def narrow(folder, split):
    return []


constant = 3
"""
COUNTS = [
    "tasks.custom.train=2",
    "tasks.custom.heldout=1",
    "rl.steps=1",
    "rl.groups_per_step=2",
    "evaluate.temperatures=[1.0]",
]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "my_source.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "cache"))


def drawn(name: str, root: Path, *overrides: str) -> RunDirectory:
    """A run directory after the ``tasks`` stage."""
    run = RunDirectory(root / "run")
    make_tasks(load_recipe(SMOKE, [*COUNTS, f'tasks.main="my_source:{name}"', *overrides]), run)
    return run


def skip_without_boxes() -> None:
    if not open_backend().probe().ok:
        pytest.skip("no namespace sandbox here")


def test_its_tasks_become_those_of_the_run(tmp_path: Path) -> None:
    skip_without_boxes()
    sweep = ("evaluate.temperatures=[0.3,1.0]", "tasks.custom.dev=1")
    run = drawn("good", tmp_path, "seed=3", "tasks.custom.seed=4", *sweep)
    assert [task.name for task in load_split(run, "custom", "dev")] == ["mine/dev-4-0"]
    train, heldout = load_split(run, "custom", "train"), load_split(run, "custom", "heldout")
    assert [task.name for task in train] == ["mine/train-7-0", "mine/train-7-1"]
    assert [task.name for task in heldout] == ["mine/heldout-4-0"]
    note = run.read_result_of("tasks")["note"]
    assert note == "4 tasks of my_source:good, all through every gate"
    left = run.tasks("custom-train") / "left-by-an-interrupted-call"
    left.mkdir()
    drawn("good", tmp_path, "seed=3", "tasks.custom.seed=4", *sweep)
    assert not left.exists()


def test_a_task_that_fails_its_gates_stops_the_stage(tmp_path: Path) -> None:
    skip_without_boxes()
    with pytest.raises(StageFailed) as caught:
        drawn("unsolved", tmp_path)
    said = str(caught.value)
    assert said.startswith("1 of 3 tasks of my_source:unsolved failed their gates: FAIL")
    assert "custom-heldout/heldout-0" in said and "oracle: the solution scores 0" in said and "custom-train" not in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("twice", "two of its train tasks are called mine/same"),
        ("alike", "two of its train tasks are called a.b/c and a/b.c; names must differ"),
        ("across", "tasks of two splits are both called mine/0"),
        ("few", "my_source:few wrote 1 train tasks, and 2 were asked for"),
        ("deep", "task directories lie directly below its folder"),
        ("mislabelled", "split is 'train', and 'heldout' was asked for"),
        ("raising", r"my_source:raising \(train\): KeyError: 'no such data set'"),
        ("paths", "it must return or yield tasks"),
    ],
)
def test_a_broken_contract_is_named(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises((TaskError, StageFailed), match=says):
        drawn(name, tmp_path)


@pytest.mark.parametrize(
    ("main", "says"),
    [
        ("my_source:absent", "task source: 'my_source:absent' cannot be loaded: AttributeError"),
        ("nowhere:good", "task source: 'nowhere:good' cannot be loaded: ModuleNotFoundError"),
        ("my_source:narrow", "must take (folder, split, count, seed): too many positional arguments"),
        ("my_source:constant", "is not a function of (folder, split, count, seed)"),
        ("syntetic", "unknown task source 'syntetic'; known: synthetic, packages, or 'module:function'"),
    ],
)
def test_the_reference_is_checked_when_the_recipe_is_read(main: str, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(SMOKE, [f'tasks.main="{main}"'])
    assert "tasks.main: " in str(caught.value) and says in str(caught.value)


def test_too_few_training_tasks_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"needs 2 training tasks .* tasks\.custom\.train is 1"):
        load_recipe(SMOKE, [*COUNTS, 'tasks.main="my_source:good"', "tasks.custom.train=1"])


def test_an_instruction_that_names_no_file_needs_a_tool_to_search_with(tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / "silent_source.py"
    source.write_text(SOURCE.replace('instruction="fix f.py"', 'instruction="fix it"'))
    with pytest.raises(StageFailed, match=r'add "grep" to harness\.tools'):
        drawn("good", tmp_path, 'tasks.main="silent_source:good"')


def test_a_label_that_no_training_task_has_is_refused_when_the_tasks_are_made(tmp_path: Path) -> None:
    reinforce = ('rl.algorithm="reinforce"', "rl.group_size=1", 'rl.algorithm_options={by="package"}')
    with pytest.raises(StageFailed, match=r"'reinforce' needs the label 'package' .* theirs are family, kind; choose"):
        drawn("good", tmp_path, *reinforce)
    with pytest.raises(RecipeError, match=r"by is 'user', and rollouts have the labels family, kind, package"):
        drawn("good", tmp_path, *reinforce[:2], 'rl.algorithm_options={by="user"}')


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raising", "my_source:raising (train): KeyError: 'no such data set'"),
        ("exits", "the stage tasks was ended by a call of sys.exit(None); see the log"),
    ],
)
def test_the_log_says_where_it_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str) -> None:
    run = RunDirectory(tmp_path / "run")
    write_text(run.recipe, dump_recipe(load_recipe(SMOKE, [*COUNTS, f'tasks.main="my_source:{name}"'])))
    with pytest.raises(SystemExit) as ended:
        main("tasks", str(run.root))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and 'my_source.py", line' in said
    assert said.splitlines()[-1] == f"fatal: {says}"
