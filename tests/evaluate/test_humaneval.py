"""HumanEval's JSON lines as exercises, and what is said of other files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from woodshed.evaluate.suites.exercises import read_collection
from woodshed.evaluate.suites.humaneval import HUMANEVAL
from woodshed.tasks.packages.index import PackageError

PROBLEM = {
    "task_id": "Mine/7",
    "prompt": 'from typing import List\n\n\ndef total(values: List[int]) -> int:\n    """ Add them.\n    """\n',
    "entry_point": "total",
    "canonical_solution": "    return sum(values)\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n",
}


@pytest.mark.parametrize("name", ["HumanEval.jsonl", "data/HumanEval.jsonl.gz"])
def test_a_problem_becomes_an_exercise_whose_solution_passes(tmp_path: Path, name: str) -> None:
    data = (json.dumps(PROBLEM) + "\n\n").encode()
    file = tmp_path / "copy" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    for place in (file, tmp_path / "copy"):
        _, (exercise,) = read_collection(HUMANEVAL, f"humaneval:{place}")
        assert exercise.name == "007" and "`total`" in exercise.instruction
    for files, passes in ((exercise.gold, True), (exercise.start, False)):
        room = tmp_path / f"room-{passes}"
        for path, content in {**files, **exercise.tests}.items():
            (room / path).parent.mkdir(parents=True, exist_ok=True)
            (room / path).write_bytes(content)
        code = "import sys; sys.path[:0] = ['.', 'tests']; import test_solution; test_solution.test_total()"
        done = subprocess.run([sys.executable, "-c", code], cwd=room, capture_output=True, check=False)
        assert (done.returncode == 0) is passes, done.stderr


def test_what_is_no_problem_is_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "HumanEval.jsonl"
    file.write_text(json.dumps({**PROBLEM, "test": None}) + "\n")
    with pytest.raises(PackageError, match=r"HumanEval\.jsonl:1: test is missing"):
        read_collection(HUMANEVAL, f"humaneval:{file}")
    file.write_text("{\n")
    with pytest.raises(PackageError, match="not JSON"):
        read_collection(HUMANEVAL, f"humaneval:{tmp_path}")
    with pytest.raises(PackageError, match="no exercise in it; expected JSON lines"):
        (tmp_path / "empty").mkdir()
        read_collection(HUMANEVAL, f"humaneval:{tmp_path}/empty")


def test_only_a_line_feed_ends_a_problem(tmp_path: Path) -> None:
    odd = {**PROBLEM, "test": PROBLEM["test"] + "    assert candidate([]) == 0, '\u2028\x85'\n"}
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(odd, ensure_ascii=False) + "\n", "utf-8")
    _, (exercise,) = read_collection(HUMANEVAL, f"humaneval:{tmp_path}")
    assert "\u2028\x85" in exercise.tests["tests/test_solution.py"].decode()


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:20] + b"\xff" * 9 + data[29:]])
def test_a_damaged_archive_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "HumanEval.jsonl.gz"
    file.write_bytes(damage(gzip.compress((json.dumps(PROBLEM) + "\n").encode())))
    with pytest.raises(PackageError, match=r"HumanEval\.jsonl\.gz: cannot be read"):
        read_collection(HUMANEVAL, f"humaneval:{file}")
