"""HumanEval (Chen et al. 2021, arXiv:2107.03374): write the body of a function that its docstring describes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

from woodshed.tasks.packages.index import PackageError

from .base import text_fields
from .exercises import Exercise, ExerciseCollection

_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
_FILES = ("HumanEval.jsonl", "HumanEval.jsonl.gz", "data/HumanEval.jsonl", "data/HumanEval.jsonl.gz")
# The published tests run in one namespace with the prompt, and some call its helper functions.
_TEST = '''"""The published check of {name}."""

from solution import *
from solution import {entry}

{test}


def test_{entry}():
    check({entry})
'''


def read_humaneval(place: Path) -> Iterator[Exercise]:
    """Yield each problem of a ``.jsonl`` or ``.jsonl.gz`` file, or of the one in a copy of the repository."""
    file = place
    if place.is_dir():
        there = [place / name for name in _FILES if (place / name).is_file()]
        if not there:
            return
        file = there[0]
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    for number, line in enumerate(data.decode("utf-8").split("\n"), 1):
        if line.strip():
            yield _exercise(text_fields(line, _FIELDS, f"{file}:{number}", PackageError))


def _exercise(problem: dict[str, str]) -> Exercise:
    prompt, entry = problem["prompt"], problem["entry_point"]
    name = problem["task_id"].rpartition("/")[2]
    test = _TEST.format(name=problem["task_id"], entry=entry, test=problem["test"].strip("\n"))
    return Exercise(
        name.zfill(3),
        f"Write the function `{entry}` in `solution.py` as its docstring says.\n",
        {"solution.py": f"{prompt}    raise NotImplementedError\n".encode()},
        {"solution.py": f"{prompt}{problem['canonical_solution']}".encode()},
        {"tests/test_solution.py": test.encode()},
    )


HUMANEVAL = ExerciseCollection("humaneval", read_humaneval, f"JSON lines with {', '.join(_FIELDS)}")
