"""RefactorBench from a folder: a small copy in its layout, whose tasks have no solution."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from woodshed.evaluate.suites.refactorbench.read import files_read, read_tasks
from woodshed.grading.crossing import Submission
from woodshed.grading.verify import grade
from woodshed.record.task import Task, TaskError, save_task
from woodshed.record.trajectory import Outcome
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.generators.prompts.write import drawn_level
from woodshed.tasks.library.describe import describe
from woodshed.tasks.library.statistics import collect
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.check import check_folders, summary
from woodshed.tasks.validate.gates import check_task

from . import repos
from .place import Place

PRICES = b"""import subprocess


class Price:
    def __eq__(self, other):
        return True


def total(prices):
    return sum(prices)
"""
MOVED = """import ast
import os
import unittest


class MoveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open("../shop/prices.py") as file:
            cls.old = {getattr(node, "name", "") for node in ast.parse(file.read()).body}

    def test_old(self):
        self.assertNotIn("Price", self.old)

    def test_new(self):
        with open("../shop/price.py") as file:
            self.assertIn("Price", {getattr(node, "name", "") for node in ast.parse(file.read()).body})

    def test_stays(self):
        self.assertIn("total", self.old)

    def test_example(self):
        self.assertTrue(os.path.exists("../docs/example.txt"))
"""
DONE = """import os
import unittest


class DoneTest(unittest.TestCase):
    def test_there(self):
        self.assertTrue(os.path.exists("../shop/prices.py"))
"""
SETUP = DONE.replace("../shop/prices.py", "../setup.py").replace("assertTrue", "assertFalse")
STYLES = {"precise": "descriptive", "normal": "base", "terse": "lazy"}


def copy_of(folder: Path, tests: dict[str, str]) -> Path:
    """A copy of the benchmark with these tests, NAME -> source, over one repository called shop."""
    files: dict[str, bytes] = {
        "repositories/shop_refactor/shop/prices.py": PRICES,
        "repositories/shop_refactor/docs/example.txt": b"total([1]) is 1\n",
        "repositories/shop_refactor/setup.py": b"raise SystemExit\n",
        "repositories/shop_refactor/conftest.py": b"import not_installed\n",
        "repositories/shop_refactor/pytest.ini": b"[pytest]\naddopts = --not-an-option\n",
        "repositories/shop_refactor/logo.png": b"\x89PNG\0",
        "repositories/shop_refactor/LICENSE": repos.MIT,
    }
    pairs = {}
    for name, source in tests.items():
        files[f"tests/shop_refactor/{name}-test.py"] = source.encode()
        for style in STYLES.values():
            files[f"problems/{style}_problems/shop_refactor/{name}-task.txt"] = f"{style}: {name}".encode()
        pairs[f"../tests/shop_refactor/{name}-test.py"] = f"../problems/base_problems/shop_refactor/{name}-task.txt"
    files["scripts/base_mapping.py"] = f"file_mapping = {pairs!r}\n".encode()
    return repos.write(folder, files)


@pytest.fixture(scope="module")
def built(place: Place) -> tuple[Path, list[Task], BuildReport]:
    report = BuildReport()
    copy = copy_of(place.root / "refactorings", {"move-price.py": MOVED, "done": DONE, "setup": SETUP})
    out = place.root / "refactored"
    tasks = place.build(f"refactorbench:{copy}", out=out, report=report, tasks_per_package=9, heldout_share=0.0)
    return copy, tasks, report


def test_a_task_measures_only(built: tuple[Path, list[Task], BuildReport], place: Place) -> None:
    copy, (task,), report = built
    (line,) = report.packages
    stray = "its test reads a file that never crosses into grading (setup.py, conftest.py, ...)"
    assert line.rejected == Counter({"no test fails": 1, stray: 1}) and (line.tried, line.kept) == (3, 1)
    info = task.info
    test = "refactorbench/test_move_price_py.py::MoveTest::test_"
    assert info.fail_to_pass == (test + "new", test + "old")
    assert info.pass_to_pass == (test + "example", test + "stays")
    assert info.submission == ("docs/example.txt", "shop/price.py", "shop/prices.py")
    assert info.split == "heldout" and task.withheld and not (task.path / "solution").exists()
    assert info.provenance["licence"] == "MIT" and info.provenance["reference"] == "withheld"
    workspace = task.workspace_files()
    assert workspace["shop/prices.py"] == PRICES and "conftest.py" in workspace and "logo.png" not in workspace
    assert not any(name.startswith("refactorbench") for name in workspace)
    assert "withhold the solution" in describe(task).text()
    assert "Solution withheld: 1; their changed lines" in collect([task.path]).text()
    before = (task.path / "task.toml").stat().st_mtime_ns
    (again,) = place.build(f"refactorbench:{copy}", out=task.path.parent, tasks_per_package=9, heldout_share=0.0)
    assert (again.path / "task.toml").stat().st_mtime_ns == before


def test_gates_say_what_they_could_not_try(built: tuple[Path, list[Task], BuildReport], place: Place) -> None:
    (task,) = built[1]
    (verdict,) = place.boxes(lambda backend, layers: check_folders([task.path], backend, layers))
    assert verdict.passed and set(verdict.unchecked) == {"oracle", "leak", "guess"}
    assert "not checked: oracle (its authors withhold the solution)" in str(verdict)
    assert "1 of 1 tasks pass every gate that could be checked" in summary([verdict])
    assert verdict.as_json()["unchecked"] == verdict.unchecked


def test_without_its_provenance_the_solution_is_missed(
    built: tuple[Path, list[Task], BuildReport], place: Place, tmp_path: Path
) -> None:
    (task,) = built[1]

    def variant(name: str, **changes: object) -> Task:
        return save_task(
            tmp_path / name,
            name="woodshed/x",
            instruction="x",
            info=replace(task.info, **changes),  # type: ignore[arg-type]
            workspace=task.workspace_files(),
            tests=task.test_files(),
            solution={},
            config=task.config,
        )

    stated = {k: v for k, v in task.info.provenance.items() if k != "reference"}
    report = place.boxes(lambda backend, layers: check_task(variant("lost", provenance=stated), backend, layers))
    assert report.failures == {"solution": "there is none"} and not report.unchecked
    swapped = variant("swapped", fail_to_pass=task.info.pass_to_pass, pass_to_pass=task.info.fail_to_pass)
    report = place.boxes(lambda backend, layers: check_task(swapped, backend, layers))
    assert set(report.failures) == {"no_op", "guards"}
    with pytest.raises(TaskError, match=r'split is \'train\'.*write split = "heldout"'):
        variant("trained", split="train")


def test_moved_code_is_no_attack(built: tuple[Path, list[Task], BuildReport], place: Place) -> None:
    (task,) = built[1]
    cls, rest = PRICES.partition(b"def total")[0], b"def total" + PRICES.partition(b"def total")[2]

    def graded(files: dict[str, bytes], deleted: tuple[str, ...] = ()) -> Outcome:
        return place.boxes(lambda backend, layers: grade(task, Submission(files, deleted), backend, layers))

    ending = dict.fromkeys(("conftest.py", "shop/conftest.py", "refactorbench/conftest.py"), b"raise SystemExit\n")
    done = graded({"shop/price.py": cls, "shop/prices.py": rest, **ending})
    assert done.resolved, done
    refused = graded({"shop/price.py": cls + b"import gc\nFOUND = gc.get_objects()\n", "shop/prices.py": rest})
    assert not refused.resolved and "shop/price.py: use of gc.get_objects" in refused.detail
    assert "__eq__" not in refused.detail
    half = graded({"shop/price.py": cls}, ("shop/prices.py",))
    assert not half.resolved and "refused" not in half.detail


@pytest.mark.parametrize("level", STYLES)
def test_levels_are_the_three_styles(place: Place, tmp_path: Path, level: str) -> None:
    copy = copy_of(tmp_path / "copy", {"move": MOVED})
    (task,) = place.build(f"refactorbench:{copy}", out=tmp_path / "out", level=level)
    assert task.instruction == f"{STYLES[level]}: move\n" and task.info.provenance["level"] == level


def test_mixed_draws_a_level_by_the_name() -> None:
    settings = PackageTaskSettings(level="mixed")
    drawn = Counter(drawn_level(settings, f"refactorbench-{number}") for number in range(60))
    assert set(drawn) == set(STYLES) and drawn_level(settings, "x") == drawn_level(settings, "x")


def test_what_a_test_reads() -> None:
    source = b'a = "../one/two.py"\nb = "../pkg/"\nc = "../pkg"\nd = "other.py"\ne = "../../up.py"\nf = "../x\\ny"\n'
    assert files_read(source) == ("one/two.py", "pkg/**")


def test_a_folder_that_is_no_copy_is_named(tmp_path: Path) -> None:
    def refused(message: str, folder: Path = tmp_path) -> None:
        with pytest.raises(PackageError, match=message):
            read_tasks(f"refactorbench:{folder}")

    refused("no such folder; give the copy", tmp_path / "nothing")
    refused(r"not a copy of RefactorBench; expected scripts/base_mapping.py, problems/STYLE_problems")
    (tmp_path / "objects").mkdir()
    refused("this is a bare git repository: clone it")
    mapping = repos.write(tmp_path, {"scripts/base_mapping.py": b"import os\nos.abort()\n"}) / "scripts/base_mapping.py"
    refused("base_mapping.py: expected one dictionary")
    mapping.write_text("found = dict(a=1)\n")
    refused("base_mapping.py: not a dictionary")
    mapping.write_text("found = {'../../x.py': '../problems/base_problems/a/b.txt'}\n")
    refused(r"expected \.\./tests/REPOSITORY/FILE.py")
    copy = copy_of(tmp_path / "copy", {"move": MOVED})
    (copy / "problems/lazy_problems/shop_refactor/move-task.txt").unlink()
    refused("lazy_problems/shop_refactor/move-task.txt: no such file", copy)
