"""From an index to graded tasks, in real boxes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from woodshed.grading.pytest_grader import grade_pytest
from woodshed.grading.results import TestRun
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.taskbox import box_spec
from woodshed.tasks.generators.packages.build import build_package_tasks
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.packages import prepare as preparation
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.dependencies import dependency_layers
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import package_spec, prepare
from woodshed.tasks.packages.source import fetch, read_sdist
from woodshed.tasks.packages.workspace import workspace_of
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.attack import UNREWARDED, attacked
from woodshed.tasks.validate.leaks import scan, scan_task

from . import tiny
from .conftest import Built

T = TypeVar("T")


def with_backend(work: Callable[[Backend], Awaitable[T]]) -> T:
    async def run() -> T:
        backend = open_backend("namespace")
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


async def grade(backend: Backend, built: Built, task: Task, submission: dict[str, bytes]) -> Outcome:
    box = await backend.create(box_spec(task, built.layers))
    try:
        await box.put({f"/workspace/{name}": data for name, data in submission.items()})
        return await grade_pytest(task, box, submission)
    finally:
        await box.close()


def test_tasks_are_built_and_complete(built: Built) -> None:
    (line,) = built.report.packages
    assert line.kept == len(built.tasks) >= 3 and line.error == ""
    assert {t.info.kind == "delete_function" for t in built.tasks} == {True, False}
    telling = 0
    for task in built.tasks:
        info = task.info
        assert info.family == "package" and info.grader == "pytest" and info.split in ("train", "heldout")
        assert info.fail_to_pass and info.pass_to_pass and not set(info.fail_to_pass) & set(info.pass_to_pass)
        assert info.provenance["package"] == "tinyshapes" and info.provenance["licence"] == "Apache-2.0"
        assert info.test_command.startswith("python -m pytest -q -x tests/test_shapes.py::")
        assert set(task.solution_files()) == {"tinyshapes/shapes.py"}
        names = {
            "tinyshapes/__init__.py",
            "tinyshapes/shapes.py",
            "tests/conftest.py",
            "tests/test_shapes.py",
            "tests/test_other.py",
            "pytest.ini",
            "setup.py",
            "pyproject.toml",
            "docs/index.rst",
        }
        told = bool(scan({"README.md": tiny.README}, task.workspace_files(), task.solution_files()))
        assert set(task.workspace_files()) == (names if told else names | {"README.md"}), info.key
        telling += told
        assert info.quality["guard"] == "suite" and info.quality["guard_share"] == "1.00"
        assert scan_task(task) == []
    assert 0 < telling < len(built.tasks), "README.md holds the answer of some tasks, and is missing in these alone"
    required = {i for t in built.tasks for i in (*t.info.fail_to_pass, *t.info.pass_to_pass)}
    unstable = {f"tests/test_shapes.py::test_{n}" for n in ("needs_the_other_first", "skipped", "broken_upstream")}
    assert not required & unstable
    assert not any("unused" in t.info.key for t in built.tasks)


def test_suite_maps_functions_to_the_tests_that_run_them(built: Built) -> None:
    catalogue = load_catalogue(Path(built.settings.catalogue))
    package = catalogue.packages["tinyshapes"]
    files = read_sdist(fetch("tinyshapes", "1.0", package.file, package.sha256))
    names = dependency_layers(catalogue, package, built.layers)

    async def cached(backend: Backend) -> object:
        return await prepare(package, catalogue, files, backend, tuple(map(built.layers.path, names)))

    suite = with_backend(cached)
    covered = {f.name: {t.partition("::test_")[2] for t in f.tests} for f in suite.functions}  # type: ignore[attr-defined]
    assert covered == {
        "area": {"area", "area_zero", "area_negative[bad0]", "area_negative[bad1]", "size"},
        "diagonal": {"diagonal", "size"},
        "Box.__init__": {"size"},
        "Box.size": {"size"},
    }
    assert set(suite.unstable) == {  # type: ignore[attr-defined]
        f"tests/test_shapes.py::test_{n}" for n in ("needs_the_other_first", "skipped", "broken_upstream")
    }


def test_a_killed_preparation_goes_on_with_its_second_run(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = load_catalogue(Path(built.settings.catalogue))
    package = catalogue.packages["tinyshapes"]
    files = read_sdist(fetch("tinyshapes", "1.0", package.file, package.sha256))
    paths = tuple(map(built.layers.path, dependency_layers(catalogue, package, built.layers)))
    real, traced = preparation.run_suite, list[bool]()

    async def run(*arguments: Any, trace: bool, **more: Any) -> TestRun:
        traced.append(trace)
        if traced == [True, False]:
            raise KeyboardInterrupt
        return await real(*arguments, trace=trace, **more)

    monkeypatch.setattr(preparation, "run_suite", run)
    whole = with_backend(lambda b: prepare(package, catalogue, files, b, paths))  # from the cache of the build
    with pytest.raises(KeyboardInterrupt):
        with_backend(lambda b: prepare(package, catalogue, files, b, paths, cache=tmp_path))
    (half,) = (tmp_path / "suites").iterdir()
    again = with_backend(lambda b: prepare(package, catalogue, files, b, paths, cache=tmp_path))
    assert traced[:3] == [True, False, False] and not any(traced[1:]), "the traced run is not done again"
    done = len(traced)
    assert (
        again.functions == whole.functions and again.unstable == whole.unstable and set(again.tests) == set(whole.tests)
    )
    assert not half.exists() and len(list((tmp_path / "suites").iterdir())) == 1
    next((tmp_path / "suites").iterdir()).unlink()
    half.write_text("{ damaged")
    with_backend(lambda b: prepare(package, catalogue, files, b, paths, cache=tmp_path))
    assert traced[done : done + 2] == [True, False]


def test_untouched_fails_solution_passes_and_the_agents_command_runs(built: Built) -> None:
    async def work(backend: Backend) -> None:
        for task in built.tasks:
            untouched = await grade(backend, built, task, {})
            assert not untouched.resolved
            assert {i for i, s in untouched.tests.items() if s != "passed"} == set(task.info.fail_to_pass)
            solved = await grade(backend, built, task, task.solution_files())
            assert solved.resolved and set(solved.tests.values()) == {"passed"}, solved
        box = await backend.create(box_spec(task, built.layers))
        before = await box.exec(task.info.test_command)
        await box.put({f"/workspace/{n}": d for n, d in task.solution_files().items()})
        after = await box.exec(task.info.test_command)
        await box.close()
        assert before.returncode == 1 and b"1 failed" in before.stdout, (before.stdout, before.stderr)
        assert after.returncode == 0 and b" passed" in after.stdout

    with_backend(work)


def test_a_second_build_reuses_every_verdict(built: Built) -> None:
    before = {t.name: (t.path / "task.toml").stat().st_mtime_ns for t in built.tasks}
    report = BuildReport()
    again = with_backend(
        lambda backend: build_package_tasks(built.settings, backend, built.layers, built.root / "tasks", report=report)
    )
    assert {t.name: (t.path / "task.toml").stat().st_mtime_ns for t in again} == before
    assert report.packages[0].rejected == built.report.packages[0].rejected


def test_a_task_whose_grader_errs_is_dropped_for_good(built: Built, tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    shutil.copytree(built.root / "tasks", out)
    settings = built.settings.model_copy(update={"exploits": 1})

    def again() -> tuple[set[str], BuildReport]:
        report = BuildReport()
        made = with_backend(lambda b: build_package_tasks(settings, b, built.layers, out, report=report))
        return {task.path.name for task in made}, report

    slugs = {task.path.name for task in built.tasks}
    assert again()[0] == slugs, "two controls and an exploit end as they must"
    for ledger in out.glob(".*.jsonl"):  # forget that, and break the solution of the task that is attacked
        ledger.write_text("".join(line for line in ledger.read_text().splitlines(True) if "exploits" not in line))
    victim = out / attacked(sorted(slugs))
    gold = victim / "solution" / "workspace" / "tinyshapes" / "shapes.py"
    gold.write_bytes((victim / "environment" / "workspace" / "tinyshapes" / "shapes.py").read_bytes())
    whole = tmp_path / "victim"
    shutil.copytree(victim, whole)
    for _ in range(3):
        kept, report = again()
        assert kept == slugs - {victim.name} == {path.parent.name for path in out.glob("*/task.toml")}
        assert report.packages[0].rejected[UNREWARDED] == 1 and report.packages[0].kept == len(kept)
        shutil.copytree(whole, victim)  # as a kill leaves it: the verdict is noted, the task not yet removed


def test_no_package_at_all_is_an_error(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/nothing")
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "empty"))
    with pytest.raises(PackageError, match=r"testing|tinyshapes"):
        with_backend(lambda b: build_package_tasks(built.settings, b, built.layers, tmp_path / "out"))


EXPLOITS: dict[str, dict[str, bytes]] = {
    "exit at import": {"tinyshapes/__init__.py": b"import os\nos._exit(0)\n"},
    "hidden exit at import": {"tinyshapes/__init__.py": b"import os\ngetattr(os, '_ex' + 'it')(0)\n"},
    "sys.exit": {"tinyshapes/__init__.py": b"import sys\ngetattr(sys, 'ex' + 'it')(0)\n"},
    "kill": {"tinyshapes/__init__.py": b"import os\nos.kill(os.getpid(), 9)\n"},
    "conftest": {
        "tinyshapes/conftest.py": b"import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, "
        b"call):\n    r = yield\n    r.outcome = 'passed'\n    return r\n"
    },
    "sitecustomize": {"tinyshapes/sitecustomize.py": b"raise SystemExit(0)\n"},
    "always equal": {
        "tinyshapes/shapes.py": b"class E:\n    def __eq__(self, o): return True\n"
        b"area = diagonal = lambda *a: E()\nclass Box:\n    def __init__(self, *a): self.size = E()\n"
    },
    "hidden patch of the runner": {
        "tinyshapes/__init__.py": b"from importlib import import_module as load\nr = load('_py' + 'test.runner')\n"
        b"setattr(r, 'call_and_report', r.show_test_item)\np = load('_py' + 'test.python')\n"
        b"setattr(p.Function, 'runtest', lambda self: None)\n"
    },
    "hidden patch of raises": {
        "tinyshapes/__init__.py": b"from importlib import import_module as load\np = load('_py' + 'test.python')\n"
        b"setattr(p, 'pytest_pyfunc_call', lambda pyfuncitem: True)\np.Function.runtest = lambda self: None\n"
    },
    "forged frames": {
        "tinyshapes/__init__.py": b"import os\nfor f in range(3, 64):\n    try:\n        os.write(f, b'\\n' + b'0' * 32"
        b" + b' {\"end\": 0}\\n')\n    except OSError:\n        pass\ngetattr(os, '_ex' + 'it')(0)\n"
    },
    "flood": {
        "tinyshapes/__init__.py": b"import os\nfor fd in range(3, 64):\n    try:\n        for _ in range(400):\n"
        b"            os.write(fd, b'x' * 65536)\n    except OSError:\n        pass\n"
    },
    "closed descriptors": {"tinyshapes/__init__.py": b"import os\nos.closerange(3, 64)\n"},
    "skip": {"tinyshapes/shapes.py": b"from unittest import SkipTest\nraise SkipTest\n"},
    "loop": {"tinyshapes/__init__.py": b"while True:\n    pass\n"},
    "swallow everything": {
        "tinyshapes/__init__.py": b"def f():\n    while True:\n        try:\n            while True:\n"
        b"                pass\n        except BaseException:\n            pass\nf()\n"
    },
}  # fmt: skip


def test_exploits_earn_nothing(built: Built) -> None:
    task = next(t for t in built.tasks if "tests/test_shapes.py::test_size" in t.info.fail_to_pass)
    # A short limit: two of these never end.
    info = type(task.info)(**{**vars(task.info), "timeout_sec": 4.0})
    task = Task(task.path, task.name, task.instruction, info, task.config)
    base = {n: d for n, d in task.workspace_files().items() if n.startswith("tinyshapes/")}

    async def work(backend: Backend) -> dict[str, Outcome]:
        turns = asyncio.Semaphore(4)

        async def one(exploit: dict[str, bytes]) -> Outcome:
            async with turns:
                return await grade(backend, built, task, {**base, **exploit})

        outcomes = await asyncio.gather(*map(one, EXPLOITS.values()))
        return dict(zip(EXPLOITS, outcomes))

    for name, outcome in with_backend(work).items():
        assert not outcome.resolved, name
        assert "passed" not in {outcome.tests[i] for i in info.fail_to_pass}, name
        assert set(outcome.tests) == {*info.fail_to_pass, *info.pass_to_pass}, name


def test_added_files_do_not_shadow_and_tests_are_restored(built: Built) -> None:
    """Files that must not have crossed are harmless even where they did."""
    task = built.tasks[0]
    hostile = {
        "tests/test_shapes.py": b"def test_area(): pass\n",
        "tests/conftest.py": b"raise RuntimeError\n",
        "pytest.ini": b"[pytest]\naddopts = --no-such-option\n",
        "conftest.py": b"raise RuntimeError\n",
        "pytest.py": b"raise RuntimeError\n",
        "json.py": b"raise RuntimeError\n",
        "x.pth": b"import nothing\n",
    }
    solved = with_backend(lambda b: grade(b, built, task, {**task.solution_files(), **hostile}))
    assert solved.resolved, solved


def test_workspace_of_the_suite_box(built: Built) -> None:
    spec = package_spec(tiny.package(), (), workspace_of(tiny.package(), tiny.FILES))
    assert spec.env["PYTHONPATH"] == "/opt/site-packages:/workspace"
    assert all(name.startswith("/workspace/") for name in spec.files)


def test_settings_are_strict() -> None:
    with pytest.raises(ValueError, match="kinds"):
        PackageTaskSettings.model_validate({"kinds": ["nothing"]})
