"""Examples run from a folder outside the package and do what they say; every public name exists."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import woodshed
from tests.real_runs import SmokeRun
from woodshed import Segment, Trajectory, TrajectoryStore, load_algorithm, load_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    assert 40 <= len(woodshed.__all__) <= 60 and set(woodshed.__all__) <= set(dir(woodshed))
    for name in woodshed.__all__:
        assert inspect.getdoc(getattr(woodshed, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = woodshed.nothing


def test_type_checkers_are_told_the_same_names() -> None:
    tree = ast.parse(Path(woodshed.__file__).read_text())
    told = {
        alias.name: (node.module or "").removeprefix("woodshed.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("woodshed.")
        for alias in node.names
    }
    assert told == woodshed._PLACES and set(told) == set(woodshed.__all__)


@pytest.mark.slow
def test_examples_read_a_finished_run(smoke: SmokeRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(smoke.root, run)

    def script(name: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), str(run)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    trained = sum(t.source == "train" for t in TrajectoryStore(run / "trajectories"))
    printed = script("read_run.py")
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert sum(int(row[1]) for row in rows) == trained > 0
    assert "outcome" in printed and "effort" in printed and (run / "pass_rate.png").stat().st_size > 1000
    assert len(script("custom_reward.py").splitlines()) == sum(
        t.outcome is not None for t in TrajectoryStore(run / "trajectories")
    )


EXECUTE = """
import json, sys, warnings
from matplotlib import pyplot
warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
        for number in pyplot.get_fignums():
            axes = pyplot.figure(number).axes[0]
            print("plot:", axes.get_ylabel(), "|", *(line.get_label() for line in axes.lines))
        pyplot.close("all")
"""


@pytest.mark.slow
def test_the_notebook_plots_a_finished_run(smoke: SmokeRun, tmp_path: Path) -> None:
    shutil.copytree(smoke.root, tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(EXAMPLES / "read_run.ipynb")],
        cwd=tmp_path,
        env={**os.environ, "RUN": str(tmp_path / "run"), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    trained = [t for t in TrajectoryStore(tmp_path / "run" / "trajectories") if t.source == "train"]
    graded = [t for t in trained if t.outcome is not None]
    printed = done.stdout.splitlines()
    assert printed[0].startswith(f"{len(graded)} graded training rollouts of {len({t.task for t in graded})} tasks")
    plots = [line for line in printed if line.startswith("plot:")]
    assert [plot.partition(" | ")[0] for plot in plots] == [
        "plot: pass rate, 95 % interval over tasks",
        "plot: mean of a rollout",
        "plot: sampled tokens of a rollout",
    ]
    assert plots[1].endswith("effort outcome")


def test_before_rl_the_notebook_says_that_there_is_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "own"\n')
    command = [sys.executable, "-c", EXECUTE, str(EXAMPLES / "read_run.ipynb")]
    environment = {**os.environ, "RUN": str(tmp_path), "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"{tmp_path}: no training rollouts yet\n"


def test_tasks_that_all_agree_leave_an_interval(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "own"\n')
    store = TrajectoryStore(tmp_path / "trajectories")
    for number in range(4):
        store.add(replace(one(1.0), id=str(number), task=f"t{number}", outcome=woodshed.Outcome(resolved=True)))
    store.close()
    command = [sys.executable, str(EXAMPLES / "read_run.py"), str(tmp_path)]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "1.000 [0.398, 1.000]" in printed


def test_the_notebook_is_committed_without_outputs() -> None:
    notebook = json.loads((EXAMPLES / "read_run.ipynb").read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 4 and not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_a_recipe_names_the_reward_and_the_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[harness]\noutput = { separator = "" }\n[rl]\nalgorithm = "custom_algorithm:Best"\n'
        '[rl.rewards]\n"custom_reward:small_change" = 0.2\n'
        '"custom_reward:deletes_files" = { weight = 0.5, cap = 0.25 }\n'
    )
    settings = load_recipe(tmp_path / "own.toml").rl
    assert settings.make_algorithm().parts == ("ce",)
    group = [one(0.0), one(1.0)]
    group[0].effort.edits = 5
    group[0] = replace(group[0], events=[woodshed.ToolEvent(0, "run_command", {"command": "rm -r tests"}, "")])
    task = woodshed.Task(tmp_path, "t", "", woodshed.TaskInfo(), {})
    terms = settings.make_reward()(task, group[0], woodshed.Outcome(resolved=False))
    assert terms == {
        "outcome": 0.0,
        "custom_reward:small_change": pytest.approx(-0.4),
        "custom_reward:deletes_files": -0.25,
    }
    lost, best = load_algorithm("custom_algorithm:Best", budget=10).annotate(group)
    assert not lost[0]["ce"].any() and best[0]["ce"].tolist() == [0, 1, 1]


def one(reward: float) -> Trajectory:
    tokens_T = np.arange(3, dtype=np.int32)
    segment = Segment(
        tokens=tokens_T, sampled=np.array([False, True, True]), logprobs=np.zeros(3, np.float32), versions=tokens_T
    )
    return Trajectory("i", "t", "g", "train", "h", "p", "submitted", segments=[segment], rewards={"outcome": reward})
