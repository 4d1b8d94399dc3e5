"""Collections of exercises from a folder: small ones in the layouts of Exercism and QuixBugs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from woodshed.evaluate.suites.exercises import read_collection
from woodshed.evaluate.suites.exercism import EXERCISM
from woodshed.evaluate.suites.quixbugs import QUIXBUGS
from woodshed.tasks.generators.packages.proof import GATES
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.languages.python import delete_body
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.validate.check import check_folders
from woodshed.tasks.validate.splits import TWIN

from . import repos
from .place import Place

STUB = b"def leap(year):\n    pass\n"
GOLD = b"def leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"
LEAP_TEST = b"""import unittest

from leap import leap


class LeapTest(unittest.TestCase):
    def test_common(self):
        self.assertIs(leap(2015), False)

    def test_leap(self):
        self.assertIs(leap(1996), True)
"""
LEAP = {
    ".meta/config.json": json.dumps(
        {"files": {"solution": ["leap.py"], "test": ["leap_test.py"], "example": [".meta/example.py"]}}
    ).encode(),
    ".meta/example.py": GOLD, ".docs/instructions.md": b"Say whether a year is a leap year.\n", "leap.py": STUB,
    "leap_test.py": LEAP_TEST,
}  # fmt: skip
GCD = b"def gcd(a, b):\n    if b == 0:\n        return a\n    return gcd(b, a % b)\n"
TRACK = {f"exercises/practice/leap/{name}": data for name, data in LEAP.items()}
BUGS = {
    "python_programs/largest.py": b"def largest(values):\n    best = values[0]\n    for v in values:\n"
    b"        if v < best:\n            best = v\n    return best\n",
    "correct_python_programs/largest.py": b"def largest(values):\n    best = values[0]\n    for v in values:\n"
    b"        if v > best:\n            best = v\n    return best\n",
    "json_testcases/largest.json": b"[[[1, 2, 3]], 3]\n[[[4]], 4]\n",
    "python_programs/gcd.py": GCD, "correct_python_programs/gcd.py": GCD, "json_testcases/gcd.json": b"[[4, 6], 2]\n",
    "LICENSE": repos.MIT,
}  # fmt: skip


def test_both_layouts_become_tasks(place: Place, tmp_path: Path) -> None:
    track, bugs = repos.write(tmp_path / "track", TRACK), repos.write(tmp_path / "bugs", BUGS)
    report, out = BuildReport(), tmp_path / "out"
    sources = (f"exercism:{track}", f"quixbugs:{bugs}")
    told: list[tuple[int, int, str]] = []
    tasks = place.build(
        *sources,
        out=out,
        report=report,
        progress=lambda *line: told.append(line),
        tasks_per_package=5,
        heldout_share=0.0,
    )
    assert [(done, total) for done, total, _ in told] == [(1, 1), (1, 2), (2, 2)]
    assert ["kept" in told[0][2], "no test fails" in told[1][2], "kept" in told[2][2]] == [True, True, True], told
    assert {line.package: dict(line.rejected) for line in report.packages} == {
        "exercism": {},
        "quixbugs": {"no test fails": 1},
    }, report.table()
    leap, largest = sorted(tasks, key=lambda task: task.name)
    assert leap.info.fail_to_pass == tuple(f"leap_test.py::LeapTest::test_{n}" for n in ("common", "leap"))
    assert leap.solution_files() == {"leap.py": GOLD} and leap.workspace_files()["leap.py"] == STUB
    assert leap.instruction.startswith("Say whether a year is a leap year.") and "`leap.py`" in leap.instruction
    assert largest.info.fail_to_pass == ("tests/test_largest.py::test_largest[given0-3]",)
    assert largest.info.pass_to_pass == ("tests/test_largest.py::test_largest[given1-4]",)
    assert largest.info.provenance["licence"] == "MIT" and leap.info.provenance["licence"] == "unknown"
    verdicts = place.boxes(lambda backend, layers: check_folders([out], backend, layers, parallel=2))
    assert [str(v) for v in verdicts if not v.passed] == [] and len(verdicts) == 2
    before = {t.path: (t.path / "task.toml").stat().st_mtime_ns for t in tasks}
    again = place.build(*sources, out=out, tasks_per_package=5, heldout_share=0.0)
    assert {t.path: (t.path / "task.toml").stat().st_mtime_ns for t in again} == before
    ledger = out / ".exercism.jsonl"  # as an earlier set of gates left it
    ledger.write_text(ledger.read_text().replace(f'"fingerprint": "{GATES}:', f'"fingerprint": "{GATES - 1}:'))
    again = place.build(*sources, out=out, tasks_per_package=5, heldout_share=0.0)
    assert {t.path for t in again if (t.path / "task.toml").stat().st_mtime_ns != before[t.path]} == {leap.path}


LENGTH = '''"""Lengths."""


def length(year):
    """Days before a year, counted from the year 1."""
    past = year - 1
    leaps = past // 4 - past // 100 + past // 400
    return 365 * past + leaps
'''
DAYS_TESTS = b"""from days import length


def test_common():
    assert length(2015) == 735598
    assert [length(year) for year in (2, 38, 611)] == [365, 13514, 222797]


def test_leap():
    assert length(1997) == 729024
    assert [length(year) for year in (5, 401, 1701)] == [1461, 146097, 620912]


def test_constant():
    assert 1 + 1 == 2
"""


def test_an_exercise_that_tells_on_a_held_out_function_is_dropped(place: Place, tmp_path: Path) -> None:
    parts = {"files": {"solution": ["days.py"], "test": ["days_test.py"], "example": [".meta/example.py"]}}
    track = repos.write(
        tmp_path / "track",
        TRACK
        | {
            "exercises/practice/days/.meta/config.json": json.dumps(parts).encode(),
            "exercises/practice/days/.meta/example.py": LENGTH.encode(),
            "exercises/practice/days/days.py": delete_body(LENGTH, "length").encode(),
            "exercises/practice/days/days_test.py": DAYS_TESTS,
            "exercises/practice/days/.docs/instructions.md": b"Say how many days there were before a year.\n",
        },
    )
    folder = repos.write(tmp_path / "My_Days", {"days.py": LENGTH.encode(), "tests/test_days.py": DAYS_TESTS})
    sources = (f"exercism:{track}", str(folder))
    chosen = {"heldout_share": 0.0, "heldout_packages": ["My_Days"], "kinds": ["delete_function"]}
    for _ in range(2):
        report = BuildReport()
        tasks = place.build(*sources, out=tmp_path / "out", report=report, tasks_per_package=2, **chosen)
        assert {t.path for t in tasks} == {p.parent for p in (tmp_path / "out").glob("*/task.toml")}
        assert {(t.info.provenance["package"], t.info.split) for t in tasks} == {
            ("my-days", "heldout"),
            ("exercism-leap", "train"),
        }
        assert [dict(line.rejected) for line in report.packages] == [{TWIN: 1}, {}]
    with_days = place.build(sources[0], out=tmp_path / "out2", **chosen | {"heldout_packages": ["exercism"]})
    assert [t.info.split for t in with_days] == ["heldout", "heldout"], "a collection is held out like any source"


def test_a_collection_that_is_of_no_use_stops_no_other(place: Place, tmp_path: Path) -> None:
    good, track = repos.write(tmp_path / "good", repos.PROJECT), repos.write(tmp_path / "track", TRACK)
    bad = tuple(f"{kind}:{tmp_path}/nothing" for kind in ("quixbugs", "refactorbench"))
    report, empty = BuildReport(), tmp_path / "empty"
    empty.mkdir()
    sources = (*bad, f"exercism:{track}", str(good), str(empty))
    tasks = place.build(*sources, out=tmp_path / "out", report=report, heldout_share=0.0)
    assert {t.info.provenance["package"] for t in tasks} == {"exercism-leap", "good"}
    found = {line.package: line.error for line in report.packages if line.error}
    assert set(found) == {"quixbugs", "refactorbench", "empty"} and "no such folder" in found["quixbugs"]
    report = BuildReport()
    place.build(f"exercism:{track}", str(empty), out=tmp_path / "out2", report=report, heldout_share=0.0)
    assert {line.package: line.kept for line in report.packages} == {"exercism": 1, "empty": 0}
    with pytest.raises(PackageError, match=r"(?s)no such folder.*holds no files"):
        place.build(*bad, str(empty), out=tmp_path / "out3")


def test_a_folder_of_another_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="no such folder; give the copy"):
        read_collection(EXERCISM, f"exercism:{tmp_path}/nothing")
    with pytest.raises(PackageError, match=r"no exercise in it; expected python_programs, correct_"):
        read_collection(QUIXBUGS, f"quixbugs:{tmp_path}")
    repos.write(tmp_path / "bad", {"leap/.meta/config.json": b"{"})
    with pytest.raises(PackageError, match=r"leap/.meta/config.json: not JSON"):
        read_collection(EXERCISM, f"exercism:{tmp_path}/bad")


@pytest.mark.parametrize(
    "change",
    [{"solution": [1]}, {"example": None}, {"test": "leap_test.py"}, {"test": ["../o.py"]}, {"test": ["/o.py"]}],
)
def test_a_configuration_with_no_paths_inside_the_exercise_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    files = json.loads(LEAP[".meta/config.json"])["files"] | change
    track = repos.write(tmp_path, {**TRACK, "exercises/practice/o.py": b""})
    (track / "exercises/practice/leap/.meta/config.json").write_text(json.dumps({"files": files}))
    with pytest.raises(PackageError, match=r"leap/\.meta/config\.json: files\.solution, test and example must be"):
        read_collection(EXERCISM, f"exercism:{track}")
