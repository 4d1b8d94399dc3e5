"""Commits and merges of a real repository become locked tasks with terse queries; refreshes add and retire."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from real_runs import woodshed

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from tests.tasks.sources.test_replay import DEAREST
from woodshed.evaluate.builder.build import Inputs, Round, build_benchmark, run_round
from woodshed.evaluate.builder.describe import benchmark_text, figures
from woodshed.evaluate.builder.lock import RETIRED, BenchmarkError, load_benchmark, read_lock, verified, write_lock
from woodshed.evaluate.builder.refresh import Retirement, old, refresh_benchmark
from woodshed.evaluate.builder.settings import BenchmarkSettings
from woodshed.grading.verify import grade
from woodshed.record.atomic import locked
from woodshed.record.history import read_history
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

from .conftest import commit

Built = tuple[Path, Round]


def test_a_commit_and_a_merge_become_tasks(place: Place, benchmark: Built) -> None:
    out, made = benchmark
    tasks = {("add" if "dearest" in t.instruction else "fix"): t for t in load_benchmark(out)}
    assert set(tasks) == {"fix", "add"}, made
    fix, add = tasks["fix"], tasks["add"]
    assert fix.instruction == "Fix split() giving shares below zero for refunds\n", "the title, without its reference"
    assert add.instruction == "Add dearest(), the opposite of cheapest()\n", "the title of the merge, without tests"
    assert DEAREST in add.solution_files()["src/prices/__init__.py"], "the whole branch is one change"
    about = json.loads((fix.path / "benchmark" / "queries.json").read_text())
    assert "cross zero" in about["full"] and "Signed-off" not in about["full"]
    assert about["level"] == "terse" and about["stated"]["score"] == 1
    assert "+    sign = -1 if amount < 0 else 1" in (fix.path / "benchmark" / "reference.diff").read_text()
    lines = []
    for task, test in ((fix, b"test_refund"), (add, b"test_dearest")):
        assert task.info.split == "heldout"
        assert test not in task.workspace_files()["tests/test_prices.py"], "its tests are never shown"
        assert test in task.test_files()["workspace/tests/test_prices.py"]
        diff = (task.path / "benchmark" / "reference.diff").read_text().splitlines()
        lines.append(sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff))
    shown = figures(read_lock(out))
    assert shown["tasks"] == shown["tasks_from_history"] == 2 and shown["median_changed_lines"] == sum(lines) / 2


def test_the_solution_scores_1_and_the_untouched_workspace_0(place: Place, benchmark: Built) -> None:
    async def both(task: Task, backend: Backend, layers: LayerStore) -> tuple[bool, bool]:
        solved = await grade(task, task.solution_files(), backend, layers)
        return solved.resolved, (await grade(task, {}, backend, layers)).resolved

    for task in load_benchmark(benchmark[0]):
        assert place.boxes(partial(both, task)) == (True, False)


def test_a_changed_task_is_refused(benchmark: Built, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    shutil.copytree(benchmark[0], out)
    name = load_benchmark(out)[0].path.name
    query = out / "tasks" / name / "instruction.md"
    query.write_text(query.read_text() + "See src/prices.\n")
    with pytest.raises(BenchmarkError, match=f"{name} was changed since it was locked.*restore it"):
        load_benchmark(out)
    said = woodshed(tmp_path, "benchmark", "show", out)
    assert said.returncode == 2 and "changed since it was locked" in said.stderr
    shutil.rmtree(out / "tasks" / name)
    with pytest.raises(BenchmarkError, match=f"{name}.*has this task: restore it"):
        load_benchmark(out)


def test_a_task_that_is_not_locked_is_refused(benchmark: Built, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    shutil.copytree(benchmark[0], out)
    shutil.copytree(load_benchmark(out)[0].path, out / "tasks" / "mine")
    with pytest.raises(BenchmarkError, match=r"mine is not in benchmark\.lock"):
        load_benchmark(out)


def test_a_query_that_says_too_little_leaves_the_task_out(
    place: Place, settings: BenchmarkSettings, tmp_path: Path
) -> None:
    """Its tests compare with a number that neither the message nor the code states."""
    folder = tmp_path / "prices"
    repos.repository(
        folder,
        {
            **repos.PROJECT,
            "tests/test_more.py": b"from prices import total\n\n\ndef test_0():\n    assert total([]) == 0\n",
        },
    )
    code = repos.CODE.replace(b"return amount", b"return amount").replace(
        b"whole = sum(prices)", b"whole = sum(prices) + surcharge(prices)"
    )
    code += b"\n\ndef surcharge(prices):\n    return 4711 if len(prices) > 6 else 0\n"
    tests = (
        repos.TESTS
        + b"\n\ndef test_many():\n    assert total([1] * 7) == 4718\n"
        + b"    assert total([2] * 9) == 4729 and total([3] * 8) == 4735\n"
    )
    commit(
        folder,
        "Be careful with long lists",
        {"src/prices/__init__.py": code, "tests/test_prices.py": tests},
        "2026-02-01",
    )
    inputs, out = Inputs([str(folder)]), tmp_path / "bench"
    with pytest.raises(BenchmarkError, match="ambiguous: 0 of 3 words"):
        place.boxes(lambda b, layers: build_benchmark(inputs, settings, out, b, layers))


def test_a_commit_is_one_task_though_two_sources_have_it(
    place: Place, history: Path, settings: BenchmarkSettings, tmp_path: Path
) -> None:
    fix = repos.git(history, "rev-parse", "HEAD~1")
    inputs, out = Inputs([f"{history}@{fix}", str(history)]), tmp_path / "bench"
    made = place.boxes(lambda b, layers: build_benchmark(inputs, settings, out, b, layers))
    commits = [entry.commit for entry in made.entries.values()]
    assert len(commits) == len(set(commits)) == 2 and fix in commits
    assert sum("is the same commit" in why for why in made.left_out.values()) == 1


def test_a_refresh_adds_new_commits_and_retires_old_tasks(
    place: Place, history: Path, settings: BenchmarkSettings, benchmark: Built, tmp_path: Path
) -> None:
    out, source = tmp_path / "bench", tmp_path / "prices"
    shutil.copytree(benchmark[0], out)
    repos.git(tmp_path, "clone", "-q", str(history), str(source))
    code = (source / "src/prices/__init__.py").read_bytes() + (
        b'\n\ndef spread(prices):\n    """The difference of the highest and the lowest price."""\n'
        b"    highest, lowest = max(prices), min(prices)\n    return highest - lowest\n"
    )
    tests = (source / "tests/test_prices.py").read_bytes().replace(b"dearest, split", b"dearest, split, spread")
    tests += b"\n\ndef test_spread():\n    assert spread([3, 1, 5]) == 4 and spread([9, 4, 8]) == 5\n"
    tests += b"    assert [spread([n, 5, 9 - n, 7]) for n in (8, 3, 4)] == [7, 4, 3]\n"
    files = {"src/prices/__init__.py": code, "tests/test_prices.py": tests}
    newest = commit(source, "Add spread(), dearest minus cheapest", files, "2026-05-01")
    before = {name: entry.digest for name, entry in read_lock(out).tasks.items()}
    known = frozenset(entry.commit for entry in read_lock(out).tasks.values())
    inputs, since = Inputs([str(source)]), "2026-03-03"
    # As if killed before the lock was written.
    place.boxes(lambda b, layers: run_round(Round(2), inputs, settings, out, b, layers, since=since, known=known))
    with pytest.raises(BenchmarkError, match="repeat it if it was interrupted"):
        load_benchmark(out)
    found = place.boxes(
        lambda b, layers: refresh_benchmark(out, inputs, Retirement(most=2, before="2026-01-01"), b, layers)
    )
    lock = read_lock(out)
    assert found.since == "2026-03-03" and len(found.made.entries) == 1, found
    (added,) = found.made.entries
    assert lock.tasks[added].commit == newest and lock.tasks[added].round == 2
    (gone,) = found.retired
    assert lock.tasks[gone].date.startswith("2026-01-10") and "2 newer" in found.retired[gone]
    assert [t.path.name for t in load_benchmark(out)] == sorted(lock.in_use) and gone not in lock.in_use
    assert read_history(Task.load(out / "tasks" / gone)).status == "retired"
    assert {name: lock.tasks[name].digest for name in before} == before, "tasks that were there are as they were"
    assert lock.rounds[1]["added"] == [added] and lock.rounds[1]["retired"] == [gone]
    assert "retired: there are 2 newer ones" in benchmark_text(lock)


def test_a_refresh_marks_what_a_killed_one_retired_in_the_lock_alone(
    place: Place, benchmark: Built, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    shutil.copytree(benchmark[0], out)
    lock = read_lock(out)
    first = min(lock.tasks)
    write_lock(out, replace(lock, tasks={**lock.tasks, first: replace(lock.tasks[first], status=RETIRED, why="old")}))
    inputs = Inputs([str(tmp_path / "nowhere")])
    place.boxes(lambda b, layers: refresh_benchmark(out, inputs, Retirement(), b, layers))
    assert {t.path.name: read_history(t).status for t in verified(out).values()} == {
        name: "retired" if name == first else "in use" for name in lock.tasks
    }


def test_one_process_at_a_time_works_in_a_benchmark(
    place: Place, history: Path, settings: BenchmarkSettings, benchmark: Built, tmp_path: Path
) -> None:
    out, fresh, inputs = tmp_path / "bench", tmp_path / "fresh", Inputs([str(history)])
    shutil.copytree(benchmark[0], out)
    fresh.mkdir()
    with locked(out, AssertionError()), locked(fresh, AssertionError()):
        with pytest.raises(BenchmarkError, match=r"another process builds or refreshes .*bench"):
            place.boxes(lambda b, layers: refresh_benchmark(out, inputs, Retirement(), b, layers))
        with pytest.raises(BenchmarkError, match=r"another process builds or refreshes .*fresh"):
            place.boxes(lambda b, layers: build_benchmark(inputs, settings, fresh, b, layers))


def test_what_is_older_than_a_date_retires(benchmark: Built) -> None:
    entries = read_lock(benchmark[0]).tasks
    assert len(old(entries, Retirement(before="2026-02-01"))) == 1
    assert old(entries, Retirement()) == {} and len(old(entries, Retirement(most=1))) == 1
    with pytest.raises(ValueError, match=r"2026-2-1.*write YYYY-MM-DD"):
        Retirement(before="2026-2-1")


def test_the_command_builds_and_shows(place: Place, history: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    options = ("--catalogue", place.catalogue, "--per-source", "1", "--min-stated", "0.5", "--set", "trace.days=7")
    done = woodshed(place.root, "benchmark", "build", history, "--out", out, *options, extra=place.environment)
    assert done.returncode == 0 and "1 tasks added" in done.stdout, done.stdout + done.stderr
    shown = woodshed(place.root, "benchmark", "show", out)
    assert "CursorBench: 181 changed lines, 390 characters" in shown.stdout
    name = load_benchmark(out)[0].path.name
    task = woodshed(place.root, "benchmark", "show", out, name).stdout
    assert "terse query  <- the instruction" in task and "+def dearest(prices):" in task
    again = woodshed(place.root, "benchmark", "build", history, "--out", out, extra=place.environment)
    assert again.returncode == 2 and "woodshed benchmark refresh" in again.stderr
    wrong = woodshed(place.root, "benchmark", "build", history, "--out", tmp_path / "x", "--set", "trace.day=7")
    assert wrong.returncode == 2 and "days" in wrong.stderr
