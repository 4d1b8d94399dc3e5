"""Instances of SWE-bench and SWE-smith over a small repository become tasks, or are left out with the reason."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from woodshed.grading.crossing import crossing
from woodshed.grading.verify import grade
from woodshed.record.task import Task, TaskError
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.library.exchange.build import build_from_instances
from woodshed.tasks.library.exchange.instances import read_instances
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.check import check_folders
from woodshed.tasks.validate.splits import TWIN

from . import repos
from .place import Place
from .test_build import tree
from .test_replay import NEW_SPLIT, OLD_SPLIT, REFUND

FIXED, TESTED = repos.CODE.replace(OLD_SPLIT, NEW_SPLIT), repos.TESTS + REFUND
SAID = "Refunds are shared out wrongly.\n\n`split(-1, 3)` gives shares of both signs.\n"
PASSING = [f"tests/test_prices.py::{n}" for n in ("test_total", "test_split", "test_wrong_discount[-1]")]


@dataclass
class Data:
    """``folder`` holds ``acme/prices`` with one commit, and ``acme__whole.git`` with one that is fixed."""

    folder: Path
    base: str
    whole: str
    fix: str
    tests: str
    breaking: str
    unfix: str

    def bench(self, **changes: Any) -> dict[str, Any]:
        row = {
            "repo": "acme/prices",
            "instance_id": "acme__prices-12",
            "base_commit": self.base,
            "patch": self.fix,
            "test_patch": self.tests,
            "problem_statement": SAID,
            "hints_text": "sign",
            "created_at": "",
            "version": "1",
            "FAIL_TO_PASS": json.dumps(["tests/test_prices.py::test_refund"]),
            "PASS_TO_PASS": json.dumps(PASSING),
            "environment_setup_commit": self.base,
        }
        return {**row, **changes}

    def smith(self, **changes: Any) -> dict[str, Any]:
        row = {
            "repo": f"swesmith/acme__whole.{self.whole[:8]}",
            "instance_id": f"acme__whole.{self.whole[:8]}.lm_x__1",
            "patch": self.breaking,
            "FAIL_TO_PASS": ["tests/test_prices.py::test_cheapest"],
            "PASS_TO_PASS": PASSING,
            "image_name": "somebody/image",
            "problem_statement": "cheapest() gives the dearest.\n",
        }
        return {**row, **changes}


def diff(folder: Path, before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """What ``git diff`` says between two states of a scratch repository."""
    repos.repository(folder, before)
    repos.write(folder, after)
    repos.git(folder, "add", "-A", "-N", ".")
    return subprocess.run(["git", "-C", str(folder), "diff"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = tmp_path_factory.mktemp("instances")
    files = {**repos.PROJECT, "LICENSE": repos.MIT}
    base = repos.repository(root / "all/acme/prices", files)
    fixed = {**files, "src/prices/__init__.py": FIXED, "tests/test_prices.py": TESTED}
    whole = repos.repository(root / "whole", fixed)
    repos.git(root, "clone", "-q", "--bare", str(root / "whole"), str(root / "all/acme__whole.git"))
    code, tests = {"src/prices/__init__.py": FIXED}, {"tests/test_prices.py": TESTED}
    broken = {"src/prices/__init__.py": FIXED.replace(b"min(prices)", b"max(prices)")}
    return Data(
        root / "all",
        base,
        whole,
        diff(root / "a", files, code),
        diff(root / "b", files, tests),
        diff(root / "c", fixed, broken),
        diff(root / "d", fixed, {"src/prices/__init__.py": repos.CODE}),
    )


@dataclass
class Imported:
    out: Path
    tasks: list[Task]
    left_out: dict[str, str]
    report: BuildReport = field(default_factory=BuildReport)


def bring(
    place: Place,
    data: Data,
    tmp: Path,
    rows: list[dict[str, Any]],
    only: Collection[str] = (),
    wishes: Wishes | None = None,
    repositories: Path | None = None,
    **settings: Any,
) -> Imported:
    file, found = tmp / "instances.jsonl", Imported(tmp / "out", [], {})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"catalogue": str(place.catalogue), "mutants": 1, "heldout_share": 0.0, **settings}
    chosen = PackageTaskSettings.model_validate(values)
    found.tasks, found.left_out = place.boxes(
        lambda boxes, layers: build_from_instances(
            file,
            repositories or data.folder,
            chosen,
            boxes,
            layers,
            found.out,
            wishes=wishes,
            report=found.report,
            only=only,
        )
    )
    return found


def rewards(place: Place, task: Task) -> tuple[float, float]:
    """(of the solution, of the untouched workspace)."""

    async def both(boxes: Any, layers: Any) -> tuple[float, float]:
        gold = await grade(task, task.solution_files(), boxes, layers)
        start = await grade(task, crossing(task.info, task.workspace_files()), boxes, layers)
        return float(gold.resolved), float(start.resolved)

    return place.boxes(both)


def test_both_datasets_become_tasks(place: Place, data: Data, tmp_path: Path) -> None:
    unknown = [*PASSING, "tests/test_prices.py::test_gone", "tests/no_file.py::test_a"]
    bench = data.bench(PASS_TO_PASS=json.dumps(unknown))
    made = bring(place, data, tmp_path, [bench, data.smith()], exploits=1)
    assert made.left_out == {}, made.report.table()
    bench_task, smith_task = made.tasks
    for task in made.tasks:
        info = task.info
        assert sorted(info.pass_to_pass) == sorted(PASSING)
        assert task.solution_files() == {"src/prices/__init__.py": FIXED}
        assert info.provenance["licence"] == "MIT" and "image" not in json.dumps(info.provenance)
        assert rewards(place, task) == (1.0, 0.0)
    assert bench_task.info.fail_to_pass == ("tests/test_prices.py::test_refund",) and bench_task.instruction == SAID
    assert smith_task.info.fail_to_pass == ("tests/test_prices.py::test_cheapest",)
    assert bench_task.workspace_files()["src/prices/__init__.py"] == repos.CODE
    assert b"max(prices)" in smith_task.workspace_files()["src/prices/__init__.py"]
    stated = bench_task.info.provenance
    assert (stated["instance"], stated["base_commit"], stated["generator"]) == (
        "acme__prices-12",
        data.base,
        "swebench",
    )
    assert stated["pass_to_pass_dropped"] == "2" and smith_task.info.provenance["pass_to_pass_dropped"] == "0"
    assert b"test_refund" not in bench_task.workspace_files()["tests/test_prices.py"]
    assert "test_refund" not in bench_task.info.test_command
    assert b"test_refund" in smith_task.workspace_files()["tests/test_prices.py"], "the repository's own test"
    assert "test_cheapest" in smith_task.info.test_command
    assert (bench_task.info.split, smith_task.info.split) == ("heldout", "train"), made.report.table()
    verdicts = place.boxes(lambda b, layers: check_folders([made.out], b, layers, parallel=2))
    assert [str(v) for v in verdicts if not v.passed] == []
    back = {"patch": data.unfix, "FAIL_TO_PASS": ["tests/test_prices.py::test_refund"], "instance_id": "twin"}
    again = bring(place, data, tmp_path, [data.smith(**back)], exploits=1)
    assert again.tasks == [] and again.left_out == {"twin": TWIN}, "one change would be in both splits"


def test_what_cannot_be_one_says_why(place: Place, data: Data, tmp_path: Path) -> None:
    refund, elsewhere = "tests/test_prices.py::test_refund", "a/b.py"
    escape = f"--- /dev/null\n+++ b/../../{elsewhere}\n@@ -0,0 +1 @@\n+x = 1\n"
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "django": ({"FAIL_TO_PASS": ["test_refund (tests.test_prices.Refunds)"]}, "not named as pytest names them"),
        "bare": ({"FAIL_TO_PASS": ["test_refund"]}, "not named as pytest names them"),
        "place": ({"FAIL_TO_PASS": ["tests/other.py::test_refund"]}, "in no test file that was found"),
        "absent": ({"FAIL_TO_PASS": ["tests/test_prices.py::test_no"]}, "not pass after the fix: .*test_no missing"),
        "early": ({"FAIL_TO_PASS": [refund, "tests/test_prices.py::test_cheapest"]}, "before the fix: .*est passed"),
        "none": ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is empty"),
        "unguarded": ({"PASS_TO_PASS": ["tests/test_prices.py::test_no"]}, "no PASS_TO_PASS test passes here"),
        "old": ({"patch": data.fix.replace("divmod(amount", "divmod(sum")}, "its patch does not apply: src/prices"),
        "escape": ({"test_patch": data.tests + escape}, "its test_patch leaves the repository: '../../a/b.py'"),
        "silent": ({"problem_statement": " \n"}, "no problem statement"),
        "commit": ({"base_commit": "0" * 40}, "its commit is not there"),
        "docs": ({"patch": "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-Prices.\n+P.\n"}, "changes no code under"),
        "code": ({"test_patch": data.fix, "patch": ""}, "its test_patch changes code: src/prices/__init__.py"),
        "leak": ({"problem_statement": f"Write this:\n\n{data.fix}"}, "the answer leaks"),
    }
    rows = [data.bench(instance_id=name, **changes) for name, (changes, _) in wrong.items()]
    rows.append(data.smith(instance_id="undone", patch=data.fix))
    made = bring(place, data, tmp_path, rows, exploits=0, mutants=0)
    assert made.tasks == [] and set(made.left_out) == {row["instance_id"] for row in rows}
    assert made.left_out.pop("undone").startswith("its patch does not apply")
    for name, why in made.left_out.items():
        assert re.search(wrong[name][1], why), (name, why)
    line = made.report.packages[0]
    assert line.rejected["its tests are not named as pytest names them (path"] == 0
    assert sum(line.rejected.values()) == line.tried == len(wrong)
    assert not list(tmp_path.rglob("b.py")), "nothing was written anywhere"


def test_a_repository_that_is_not_there(place: Place, data: Data, tmp_path: Path) -> None:
    other = data.bench(repo="acme/other", instance_id="acme__other-1")
    with pytest.raises(TaskError, match=r"row 1: acme__other-1: its repository is not there: .* has none of") as caught:
        bring(place, data, tmp_path, [other])
    for name in ("acme__other.git", "acme/other", "other.git", str(data.folder), "clone acme/other there"):
        assert name in str(caught.value)
    made = bring(place, data, tmp_path, [other, data.bench()], exploits=0)
    assert len(made.tasks) == 1 and made.left_out["acme__other-1"].startswith("its repository is not there: ")
    repos.git(tmp_path, "clone", "-q", str(data.folder / "acme/prices"), str(data.folder / "other"))
    again = bring(place, data, tmp_path, [other, data.bench()], exploits=0)
    assert len(again.tasks) == 2 and again.left_out == {}, "what was not there is looked for again"


def test_the_same_command_goes_on(place: Place, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [data.bench(), data.smith(), data.bench(instance_id="later", FAIL_TO_PASS=PASSING[:1])]
    whole = tmp_path / "whole"
    whole.mkdir()
    steady = bring(place, data, whole, rows)
    first = bring(place, data, tmp_path, rows, only=["acme__prices-12"])
    assert len(first.tasks) == 1
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/nothing")
    again = bring(place, data, tmp_path, rows)
    assert again.left_out == steady.left_out and list(steady.left_out) == ["later"]
    assert tree(again.out) == tree(steady.out)
    stamp = {p: p.stat().st_mtime_ns for p in again.out.glob("*/task.toml")}
    bring(place, data, tmp_path, rows)
    assert {p: p.stat().st_mtime_ns for p in again.out.glob("*/task.toml")} == stamp, "nothing is made twice"
    with pytest.raises(PackageError, match="give the same, or build into another folder"):
        bring(place, data, tmp_path, rows, heldout_share=0.5)


def test_needs_are_resolved_and_locked(place: Place, data: Data, tmp_path: Path) -> None:
    """A helper that the tests import and only a setup.py states."""
    repos.wheel(place.root, "pricehelp", "1.0", {"pricehelp.py": "def one():\n    return 1\n"})
    setup = b"from setuptools import setup\nE = {'tests': ['pricehelp>=1']}\nsetup(name='prices', extras_require=E)\n"
    tests = repos.TESTS.replace(b"import pytest\n", b"import pricehelp\nimport pytest\n", 1)
    files = {**repos.PROJECT, "setup.py": setup, "tests/test_prices.py": tests}
    base = repos.repository(tmp_path / "all/prices.git", files)
    row = data.bench(base_commit=base, test_patch=diff(tmp_path / "d", files, {"tests/test_prices.py": tests + REFUND}))
    made = bring(place, data, tmp_path, [row], repositories=tmp_path / "all", exploits=0)
    assert made.left_out == {} and len(made.tasks) == 1
    assert "pricehelp-1.0" in (made.out / "sources.toml").read_text()
    assert rewards(place, made.tasks[0]) == (1.0, 0.0)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_every_container_is_read(data: Data, tmp_path: Path, suffix: str) -> None:
    rows, path = [data.bench(), data.smith(base_commit=None, test_patch=None)], tmp_path / f"instances{suffix}"
    if suffix == ".parquet":
        bench = data.bench(FAIL_TO_PASS=json.loads(data.bench()["FAIL_TO_PASS"]), PASS_TO_PASS=PASSING)
        pq.write_table(pa.Table.from_pylist([bench, rows[1]]), path)
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "".join(json.dumps(r) + "\n\n" for r in rows))
    bench_one, smith_one = read_instances(path)
    repository = (bench_one.owner, bench_one.name, bench_one.commit)
    assert (bench_one.format, *repository) == ("swebench", "acme", "prices", data.base)
    assert (smith_one.format, smith_one.owner, smith_one.name) == ("swesmith", "acme", "whole")
    assert smith_one.commit == data.whole[:8] and smith_one.test_patch == ""
    assert bench_one.fail_to_pass == ("tests/test_prices.py::test_refund",)
    assert smith_one.fail_to_pass == ("tests/test_prices.py::test_cheapest",)
    assert bench_one.pass_to_pass == smith_one.pass_to_pass == tuple(PASSING)
    assert [i.id for i in read_instances(path, [smith_one.id])] == [smith_one.id]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"instance_id": 3}, "row 1: instance_id must be text, got '3'"),
        ({"patch": None}, "row 1: patch must be text"),
        ({"test_patch": None}, "row 1: test_patch must be text"),
        ({"repo": "../prices"}, "neither OWNER/NAME"),
        ({"base_commit": "--upload-pack=x"}, "base_commit must be all digits of a commit"),
        ({"FAIL_TO_PASS": "test_a"}, "row 1: FAIL_TO_PASS: not JSON"),
        ({"PASS_TO_PASS": [1]}, "row 1: PASS_TO_PASS must be a list of test ids"),
    ],
)
def test_damaged_rows_are_named(data: Data, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(data.bench(**change)) + "\n")
    with pytest.raises(TaskError, match=r"rows\.jsonl") as caught:
        read_instances(path)
    assert says in str(caught.value)


def test_damaged_files_are_named(data: Data, tmp_path: Path) -> None:
    twice = json.dumps(data.bench()) + "\n"
    for name, text, says in (
        ("a.jsonl", twice * 2, "acme__prices-12 is there twice"),
        ("b.jsonl", "", "holds no instance"),
        ("c.jsonl", "{", "c.jsonl:1: not JSON"),
        ("d.json", "{}", "must be a list"),
        ("e.csv", "a,b", "are read from"),
        ("f.parquet", "x", "not readable as Parquet"),
        ("g.json", "[3]", "not an instance but int"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TaskError, match=name) as caught:
            read_instances(tmp_path / name)
        assert says in str(caught.value)
    with pytest.raises(TaskError, match="no such file"):
        read_instances(tmp_path / "none.jsonl")
    (tmp_path / "a.jsonl").write_text(twice)
    with pytest.raises(TaskError, match="no instance 'other'"):
        read_instances(tmp_path / "a.jsonl", ["other"])


def test_the_command(place: Place, data: Data, tmp_path: Path) -> None:
    file, out = tmp_path / "some.json", tmp_path / "out"
    file.write_text(json.dumps([data.bench(), data.smith(FAIL_TO_PASS=PASSING[:1])]))
    told = ("--repositories", data.folder, "--out", out, "--catalogue", place.catalogue, "--exploits", "0")
    said = place.command("import", file, *told)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "left out: acme__whole." in said.stdout and "1 tasks in" in said.stdout
    assert "1 a FAIL_TO_PASS test does not fail before the fix" in said.stdout
    shown = json.loads(place.command("import", file, *told, "--json").stdout)
    assert (
        len(shown["tasks"]) == 1
        and len(shown["left_out"]) == 1
        and shown["sources"][0]["kinds"] == {"swebench": [1, 1]}
    )
    said = place.command("import", file, "--out", out)
    assert said.returncode == 2 and "--repositories" in said.stderr
