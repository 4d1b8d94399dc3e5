"""Collections of exercises as they lie on disk: Exercism's Python track (and polyglot sets like it), QuixBugs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.sources.project import Project

_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "COPYING")

_QUIXBUGS_TEST = '''"""Cases of {name}."""

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


@dataclass(frozen=True)
class Exercise:
    """``start`` and ``gold`` have the same files; ``tests`` are laid beside them. Paths are relative to the workdir."""

    name: str
    instruction: str
    start: dict[str, bytes]
    gold: dict[str, bytes]
    tests: dict[str, bytes]


def read_exercism(folder: Path) -> Iterator[Exercise]:
    """Each exercise whose ``.meta/config.json`` names a Python solution, a test and an example."""
    for config in sorted(folder.rglob(".meta/config.json")):
        root = config.parent.parent
        files = _config(config).get("files", {})
        solution, tests, example = (files.get(key, []) for key in ("solution", "test", "example"))
        if not (solution and tests) or len(example) != len(solution) or not all(n.endswith(".py") for n in solution):
            continue
        docs = [root / ".docs" / name for name in ("introduction.md", "instructions.md", "instructions.append.md")]
        text = "\n\n".join(path.read_text("utf-8").strip() for path in docs if path.is_file())
        yield Exercise(
            root.name, f"{text}\n\nWrite it in {', '.join(f'`{n}`' for n in solution)}.\n",
            {name: _bytes(root / name) for name in solution},
            {name: _bytes(root / made) for name, made in zip(solution, example)},
            {name: _bytes(root / name) for name in tests},
        )  # fmt: skip


def read_quixbugs(folder: Path) -> Iterator[Exercise]:
    """Each Python program with cases in JSON; those that work on nodes of graphs have none."""
    for cases in sorted((folder / "json_testcases").glob("*.json")):
        name = cases.stem
        wrong, right = folder / "python_programs" / f"{name}.py", folder / "correct_python_programs" / f"{name}.py"
        if wrong.is_file() and right.is_file():
            test = _QUIXBUGS_TEST.format(name=name).encode()
            yield Exercise(
                name, f"`{name}.py` has a bug in one line. Find it and correct it.\n", {f"{name}.py": _bytes(wrong)},
                {f"{name}.py": _bytes(right)}, {f"tests/test_{name}.py": test, f"tests/{name}.json": _bytes(cases)},
            )  # fmt: skip


READERS: dict[str, Callable[[Path], Iterator[Exercise]]] = {"exercism": read_exercism, "quixbugs": read_quixbugs}


def read_collection(source: str) -> tuple[str, str, list[Exercise]]:
    """(name, licence, exercises). Raises PackageError, which says what the folder should look like."""
    name, _, path = source.partition(":")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise PackageError(f"{source}: no such folder; give the copy of the collection that you have")
    try:
        found = list(READERS[name](folder))
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{source}: cannot be read ({error})") from None
    if not found:
        layout = {
            "exercism": "NAME/.meta/config.json with files.solution, files.test and files.example in Python",
            "quixbugs": "python_programs, correct_python_programs and json_testcases",
        }[name]
        raise PackageError(f"{source}: no exercise in it; expected {layout}")
    licences = {n: (folder / n).read_bytes() for n in _LICENCES if (folder / n).is_file()}
    return name, Project(licences).licence, found


def _config(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise PackageError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("files", {}), dict):
        raise PackageError(f"{path}: files must be an object")
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes()
