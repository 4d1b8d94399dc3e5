"""QuixBugs: small Python programs with a bug in one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .exercises import Exercise, ExerciseCollection

_TEST = '''"""Cases of {name}."""

import json
from pathlib import Path

import pytest
from {name} import {name}

_LINES = (Path(__file__).parent / "{name}.json").read_text().splitlines()
CASES = [json.loads(line) for line in _LINES if line.strip()]


@pytest.mark.parametrize("given, wanted", CASES)
def test_{name}(given, wanted):
    found = {name}(*given) if isinstance(given, list) else {name}(given)
    if hasattr(found, "__next__"):
        found = list(found)
    assert json.loads(json.dumps(found)) == wanted
'''


def read_quixbugs(folder: Path) -> Iterator[Exercise]:
    """Yield each Python program with cases in JSON; programs on graph nodes have none."""
    for cases in sorted((folder / "json_testcases").glob("*.json")):
        name = cases.stem
        wrong, right = folder / "python_programs" / f"{name}.py", folder / "correct_python_programs" / f"{name}.py"
        if wrong.is_file() and right.is_file():
            test = _TEST.format(name=name).encode()
            yield Exercise(
                name,
                f"`{name}.py` has a bug in one line. Find it and correct it.\n",
                {f"{name}.py": wrong.read_bytes()},
                {f"{name}.py": right.read_bytes()},
                {f"tests/test_{name}.py": test, f"tests/{name}.json": cases.read_bytes()},
            )


QUIXBUGS = ExerciseCollection("quixbugs", read_quixbugs, "python_programs, correct_python_programs and json_testcases")
