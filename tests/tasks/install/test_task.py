"""An install as a task: its recipe scores 1, nothing scores 0, what forges outputs scores 0; in real boxes, offline."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest
from typer.testing import CliRunner

from tests.tasks.sources.place import Place
from woodshed.cli.main import app
from woodshed.grading.install.changes import SETUP, python_refusal
from woodshed.grading.install.grader import SPEC, load_spec
from woodshed.grading.verify import grade, submission_from
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.taskbox import box_spec


@pytest.fixture(scope="module")
def task(market: Place) -> Task:
    """Made by the command from the install that the tests of rules make too: its gates have held."""
    tasks = market.root / "install-tasks"
    said = market.command(
        "install",
        market.root / "repository",
        "--out",
        market.root / "installs",
        "--catalogue",
        market.catalogue,
        "--tasks",
        tasks,
        "--json",
    )
    assert said.returncode == 0, said.stdout + said.stderr
    found = json.loads(said.stdout)
    assert found["refused"] == {} and len(found["tasks"]) == 1
    return Task.load(tasks / "repository-install")


def test_it_says_what_must_work_and_holds_no_answer(market: Place, task: Task) -> None:
    assert task.info.grader == "install" and task.info.submission == (SETUP,)
    assert "python3 -m pytest" in task.instruction and SETUP in task.instruction
    assert "money-fixture" not in task.instruction and SETUP not in task.workspace_files()
    targets = [test for test in task.info.fail_to_pass if test.startswith("target ")]
    tests = [test for test in task.info.fail_to_pass if "::" in test]
    assert targets and "tests/test_prices.py::test_total" in tests and "tests/test_prices.py::test_split" in tests
    assert set(load_spec(str(task.path / "tests" / SPEC), task.digest).wheels) == {
        "fast-1.1",
        "money_fixture-2.0",
        "pytest_mock-9.0",
    }
    repository, installs = str(market.root / "repository"), str(market.root / "installs")
    arguments = ["install", repository, "--out", installs, "--tasks", str(task.path.parent)]
    written = (task.path / "task.toml").stat().st_mtime_ns
    again = CliRunner().invoke(app, ["tasks", *arguments, "--catalogue", str(market.catalogue)])
    assert again.exit_code == 0 and "1 tasks in" in again.output, again.output
    assert (task.path / "task.toml").stat().st_mtime_ns == written, "what is there is kept"


CHEATS = {
    # A pytest of one's own, first on PATH and in the user's packages: it does not cross.
    "nothing but outputs": 'mkdir -p ~/.local/bin\nprintf "#!/bin/sh\\necho 9 passed\\n" > ~/.local/bin/python3\n'
    "chmod +x ~/.local/bin/python3\n",
    "it changes tests/test_prices.py": "echo 'def test_total(): pass' > tests/test_prices.py\n",
    "it adds conftest.py, which configures": "echo 'collect_ignore = [\"tests\"]' > conftest.py\n",
    "it adds fast.py, which takes the place": "echo 'print(\"9 passed\")' > fast.py\n",
    "it adds tests/fast.py, which takes the place": "echo 'parity = 1' > tests/fast.py\n",
    # Read before the repository's own configuration, and a copy of the project that needs nothing.
    "it adds .pytest.toml, which configures": "pip install -q fast money-fixture\n"
    "printf '[pytest]\\npython_functions = [\"test_total\"]\\n' > .pytest.toml\n",
    "it adds GNUmakefile, which configures": "pip install -q fast\necho 'test: ; echo 9 passed' > GNUmakefile\n",
    "it adds prices/__init__.py, which takes the place": "mkdir prices\necho 'VERSION = 1' > prices/__init__.py\n",
    "it adds mock.py: import gc, which no mock needs": "pip install -q fast\necho 'import gc' > mock.py\n",
    "is installed and is no wheel of the index": "p=$(python3 -m site --user-site); mkdir -p $p/money-1.dist-info\n",
    "setup.sh ended with 1": "pip install -q fast money-fixture==3.0\n",
}


def test_only_what_installs_it_is_rewarded(market: Place, task: Task) -> None:
    other = "pip install -q pytest-mock money-fixture fast\n"

    async def grades(backend: Backend, layers: LayerStore) -> dict[str, Outcome]:
        box = await backend.create(box_spec(task, layers))
        try:  # as an agent leaves it, which has tried pip itself
            tried = await box.exec(
                "pip install -q fast && python3 -c 'import fast; print(fast.parity)'", cwd="/workspace"
            )
            assert tried.stdout == b"1\n", tried
            await box.put({f"/workspace/{SETUP}": other.encode(), "/workspace/pytest.py": b"raise SystemExit\n"})
            found = {"another recipe": await grade(task, await submission_from(box, task), backend, layers)}
        finally:
            await box.close()
        for why, script in CHEATS.items():
            found[why] = await grade(task, {SETUP: script.encode()}, backend, layers)
        return found

    found = market.boxes(grades)
    assert found.pop("another recipe").resolved
    for why, outcome in found.items():
        assert not outcome.resolved, why
        assert set(outcome.tests) == {*task.info.fail_to_pass, *task.info.pass_to_pass}
        assert why == "nothing but outputs" or why in outcome.detail, outcome.detail
        assert not {outcome.tests[test] for test in task.info.fail_to_pass} & {"passed"}, why


def test_modules_beside_scripts() -> None:
    files = ["src/prices/__init__.py", "src/prices/sums.py", "tools/check.py", "tools/parts/__init__.py"]
    refusal = python_refusal(["src", "."], {"fast"}, files)
    takes = ["tools/json.py", "tools/fast/__init__.py", "tools/prices.py", "tools/prices/__init__.py", "json/a.py"]
    allowed = ["src/prices/json.py", "src/prices/_version.py", "tools/parts/json.py", "tools/other.py", "data/json.txt"]
    for name in takes:
        assert "takes the place" in refusal(PurePosixPath(name)), name
    for name in allowed:
        assert refusal(PurePosixPath(name)) == "", name


def test_a_damaged_table_is_named(task: Task, tmp_path: Path) -> None:
    path = tmp_path / SPEC
    path.write_bytes(load_spec(str(task.path / "tests" / SPEC), task.digest).dump())
    assert load_spec(str(path), "a") == load_spec(str(task.path / "tests" / SPEC), task.digest)
    path.write_text('{"own": 3}')
    with pytest.raises(TaskError, match=r"install\.json: not a table of targets and wheels"):
        load_spec(str(path), "b")
