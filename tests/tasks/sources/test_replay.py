"""Real commits of a git repository become tasks: the parent to start from, the commit's tests to pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from woodshed.record.task import Task
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.languages.python import changed_functions
from woodshed.tasks.packages.history import Commit, cleaned, parse_log, replayable
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.repository import Objects, write_bundle
from woodshed.tasks.validate.check import check_folders

from . import repos
from .place import Place

FIX = (
    "Fix split() giving shares below zero for refunds (#12)\n\nA refund of 1 to 3 people gave shares of different\n"
    "signs. They must add up and never cross zero.\n\nSigned-off-by: A <a@example.invalid>\n"
)
ADD = "Add dearest(), the opposite of cheapest()\n"
OLD_SPLIT = b"    share, rest = divmod(amount, people)\n    return [share + 1] * rest + [share] * (people - rest)\n"
NEW_SPLIT = (
    b"    sign = -1 if amount < 0 else 1\n    share, rest = divmod(abs(amount), people)\n"
    b"    return [sign * (share + 1)] * rest + [sign * share] * (people - rest)\n"
)
DEAREST = b'''

def dearest(prices):
    """The highest price and its place."""
    best = max(prices)
    return best, list(prices).index(best)
'''

REFUND = b"""

def test_refund():
    assert split(-1, 3) == [-1, 0, 0]
    for amount in (-17, -25, -340):
        assert split(amount, 7) == [-n for n in split(-amount, 7)]
    assert split(-38, 5) == [-8, -8, -8, -7, -7]
"""
TEST_DEAREST = b"""

def test_dearest():
    assert dearest([3, 1, 5]) == (5, 2)
    assert dearest([12, 40, 31, 7]) == (40, 1) and dearest([90, 22, 35]) == (90, 0)
    assert [dearest([n, 5, 60 - n, 19]) for n in (8, 34, 47)] == [(52, 2), (34, 0), (47, 0)]
"""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five commits: the project, a fix with a test, docs only, a feature with a test, code without a test.

    Their ids are the same in every run, because what a task is asked besides is drawn by the commit."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
            patch.setenv(name, "@1750000000 +0000")
        folder = tmp_path_factory.mktemp("history") / "prices"
        other = b"from prices import total\n\n\ndef test_nothing_to_pay():\n    assert total([]) == 0\n"
        repos.repository(folder, {**repos.PROJECT, "LICENSE": repos.MIT, "tests/test_more.py": other})
        code, tests = repos.CODE, repos.TESTS

        def commit(message: str, files: dict[str, bytes]) -> None:
            repos.write(folder, files)
            repos.git(folder, "commit", "-q", "-a", "-m", message)

        code = code.replace(OLD_SPLIT, NEW_SPLIT)
        tests += REFUND
        commit(FIX, {"src/prices/__init__.py": code, "tests/test_prices.py": tests})
        commit("Say in the README what this is for\n", {"README.md": b"Prices, added up.\n"})
        code += DEAREST
        tests = tests.replace(b"import cheapest, split", b"import cheapest, dearest, split")
        tests += TEST_DEAREST
        commit(ADD, {"src/prices/__init__.py": code, "tests/test_prices.py": tests})
        commit(
            "Speed up without any test\n", {"src/prices/__init__.py": code.replace(b"sum(prices)", b"sum(prices, 0)")}
        )
    return folder


def test_commits_become_tasks(place: Place, history: Path, tmp_path: Path) -> None:
    report = BuildReport()
    arguments = {"kinds": ["replay"], "heldout_share": 0.0, "mutants": 2, "level": "normal", "tasks_per_package": 4}
    tasks = place.build(str(history), out=tmp_path / "out", report=report, **arguments)
    assert report.packages[0].kinds == {"replay": [2, 2]}, report.table()
    by_name = {("fix" if "refunds" in t.instruction else "add"): t for t in tasks}
    fix, add = by_name["fix"], by_name["add"]
    assert fix.info.fail_to_pass == ("tests/test_prices.py::test_refund",)
    assert "tests/test_prices.py::test_split" in fix.info.pass_to_pass
    assert b"test_refund" not in fix.workspace_files()["tests/test_prices.py"], "the new test is held out"
    assert b"test_refund" in fix.test_files()["workspace/tests/test_prices.py"]
    assert OLD_SPLIT in fix.workspace_files()["src/prices/__init__.py"]
    assert NEW_SPLIT in fix.solution_files()["src/prices/__init__.py"]
    assert "Signed-off" not in fix.instruction and "#12" not in fix.instruction and "cross zero" in fix.instruction
    assert "test_refund" not in fix.info.test_command and "test_refund" not in fix.instruction
    assert "`dearest`" in add.instruction, "nobody could guess the name that the tests import"
    assert "tests/test_prices.py::test_dearest" in add.info.fail_to_pass
    for task in tasks:
        stated = task.info.provenance
        assert stated["generator"] == "replay" and stated["licence"] == "MIT" and len(stated["base_commit"]) == 40
        assert not any(".git" in name for name in task.workspace_files())
        assert float(task.info.quality["mutation_score"]) >= 0
    assert add.info.pass_to_pass == ("tests/test_more.py::test_nothing_to_pay",), "the other file cannot be collected"
    verdicts = place.boxes(lambda b, layers: check_folders([t.path for t in tasks], b, layers, parallel=2))
    assert [str(v) for v in verdicts if not v.passed] == []


@pytest.mark.parametrize("level", ["normal", "precise"])
def test_a_commit_that_touches_a_template_becomes_a_task(place: Place, tmp_path: Path, level: str) -> None:
    """Files of a project that are not Python, or not that of today, bear the name of it too."""
    folder, template = tmp_path / "prices", "src/prices/template.py"
    repos.repository(folder, {**repos.PROJECT, template: b"print '%s' % {{ price }}\n"})
    tests = repos.TESTS.replace(b"import cheapest, split", b"import cheapest, dearest, split")
    code = repos.CODE + DEAREST.replace(b"best", b"highest")  # a name of its own that nobody is told
    repos.write(
        folder,
        {
            "src/prices/__init__.py": code,
            template: b"print '%.2f' % {{ price }}\n",
            "tests/test_prices.py": tests + TEST_DEAREST,
            "tests/test_more.py": b"from prices import total\n\n\ndef test_none():\n    assert total([]) == 0\n",
        },
    )
    repos.git(folder, "add", "-A")
    repos.git(folder, "commit", "-q", "-m", ADD)
    report, chosen = BuildReport(), {"kinds": ["replay"], "heldout_share": 0.0, "level": level}
    tasks = place.build(str(folder), out=tmp_path / "out", report=report, **chosen)
    assert len(tasks) == 1, report.table()
    (task,) = tasks
    assert template in task.solution_files() and "dearest" in task.instruction
    assert changed_functions("", "def f():\n    return '\0'\n") == []


@pytest.mark.parametrize("long", [False, True])
def test_a_commit_whose_message_says_too_little_shows_its_tests(place: Place, tmp_path: Path, long: bool) -> None:
    folder = tmp_path / "prices"
    other = b"from prices import total\n\n\ndef test_none():\n    assert total([]) == 0\n"
    repos.repository(folder, {**repos.PROJECT, "tests/test_more.py": other, "tests/table.json": b"[1]"})
    comment = b"    # as the accountants have it\n" * (200 if long else 0)
    test = b"def test_last():\n    assert split(110, 3) == [36, 37, 37]\n" + comment
    test += b"    assert split(50, 4) == [12, 12, 13, 13] and split(99, 5) == [19, 20, 20, 20, 20]\n"
    tests = repos.TESTS.partition(b"def test_split")[0] + test + b"\n\ndef test_one():\n    assert split(7, 1) == [7]\n"
    code = repos.CODE.replace(
        b"[share + 1] * rest + [share] * (people - rest)", b"[share] * (people - rest) + [share + 1] * rest"
    )
    repos.write(
        folder,
        {
            "src/prices/__init__.py": code,
            "tests/test_prices.py": tests,
            "tests/table.json": b"[2]",
        },
    )
    repos.git(folder, "commit", "-q", "-a", "-m", "Be careful when splitting\n")
    report = BuildReport()
    chosen = {"kinds": ["replay"], "heldout_share": 0.0, "level": "terse"}
    (task,) = place.build(str(folder), out=tmp_path / "out", report=report, **chosen) or [report.table()]
    assert isinstance(task, Task), task
    assert task.info.fail_to_pass == ("tests/test_prices.py::test_last",)
    given = task.workspace_files()
    assert given["tests/table.json"] == b"[2]", "data of tests is never hidden"
    assert (b"[36, 37, 37]" in given["tests/test_prices.py"]) == long
    assert ("[36, 37, 37]" in task.instruction) == (not long)
    assert "Be careful when splitting" in task.instruction


def test_a_second_build_needs_only_what_it_kept(place: Place, history: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "prices", tmp_path / "out"
    repos.git(tmp_path, "clone", "-q", str(history), str(copy))
    chosen = {"kinds": ["replay"], "heldout_share": 0.0, "tasks_per_package": 1}
    first = place.build(str(copy), out=out, **chosen)
    lock = (out / "sources.toml").read_text()
    assert len(first) == 1 and 'history = "prices-' in lock
    subprocess.run(["git", "-C", str(copy), "checkout", "-q", "--orphan", "empty"], check=True)
    report = BuildReport()
    again = place.build(str(copy), out=out, report=report, **{**chosen, "tasks_per_package": 2})
    assert len(again) == 2, report.table()
    assert first[0].name in {task.name for task in again}
    bundle = next((out / "sources").glob("*.bundle"))
    bundle.write_bytes(b"other")
    with pytest.raises(PackageError, match=r"prices-.*\.bundle has been changed"):
        place.build(str(copy), out=out, **{**chosen, "tasks_per_package": 2})


def test_which_commits_are_worth_trying() -> None:
    def commit(message: str, *files: str, lines: int = 9) -> Commit:
        return Commit("a" * 40, "b" * 40, message, files, lines)

    both = ("src/a.py", "tests/test_a.py")
    good = commit("Let a() take a list", *both)
    bad = [
        commit("Let a() take a list", "src/a.py"),
        commit("Let a() take a list", "tests/test_a.py"),
        commit("Bump version to 3.1", *both),
        commit("Merge branch 'x' of y", *both),
        commit("fix", *both),
        commit("Let a() take a list", *both, lines=4000),
        commit("Let a() take a list", "src/a.c", "tests/test_a.py"),
        commit("Fixes #1234, closes #1235", *both),
        commit("Let a() take a list", *both, *(f"docs/{n}.md" for n in range(20))),
    ]
    assert replayable([good, *bad], ("src",), ("tests",)) == [good]
    assert parse_log(b"") == []


def test_bytes_that_begin_a_commit_may_stand_in_messages_and_paths(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    repos.repository(folder, {"a.py": b"one\n"})
    repos.write(folder, {"a.py": b"two\n", "tab\there.py": b"x\n", "\x01.py": b"y\n"})
    repos.git(folder, "add", "-A")
    repos.git(folder, "commit", "-q", "-m", f"Let a() take \x01 lists\n\n\x01{'0' * 40}\n\x01")
    newest = repos.git(folder, "rev-parse", "HEAD")
    write_bundle(str(folder), newest, tmp_path / "bundle")
    objects = Objects(tmp_path / "bundle")
    try:
        (found,) = objects.log(newest)
    finally:
        objects.close()
    assert found.message.startswith("Let a() take \x01 lists") and found.lines == 4
    assert sorted(found.files) == ["\x01.py", "a.py", "tab\there.py"]


def test_messages_are_cleaned() -> None:
    assert cleaned(FIX)[0] == "Fix split() giving shares below zero for refunds"
    assert cleaned("feat(api): take lists, closes #3.\n\nhttps://example.invalid/1\nReviewed-by: B")[0] == "take lists,"
    subject, body = cleaned("fix: a crash (GH-7)\n\nIt crashed.\n\nCo-authored-by: B <b@example.invalid>\n")
    assert (subject, body) == ("a crash", "It crashed.")
    assert cleaned("Draw borders in #000000") == ("Draw borders in #000000", ""), "a colour is no reference"
    assert cleaned("Fixes #1234, closes gh-1235")[0] == ","
