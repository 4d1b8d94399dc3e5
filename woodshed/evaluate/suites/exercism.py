"""Exercism's Python track, and polyglot sets in its layout: write a program that its tests specify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from woodshed.tasks.packages.index import PackageError

from .exercises import Exercise, ExerciseCollection


def read_exercism(folder: Path) -> Iterator[Exercise]:
    """Yield each exercise whose ``.meta/config.json`` names a Python solution, a test and an example."""
    for config in sorted(folder.rglob(".meta/config.json")):
        root = config.parent.parent
        solution, tests, example = _files(config)
        if not (solution and tests) or len(example) != len(solution) or not all(n.endswith(".py") for n in solution):
            continue
        docs = [root / ".docs" / name for name in ("introduction.md", "instructions.md", "instructions.append.md")]
        text = "\n\n".join(path.read_text("utf-8").strip() for path in docs if path.is_file())
        yield Exercise(
            root.name,
            f"{text}\n\nWrite it in {', '.join(f'`{n}`' for n in solution)}.\n",
            {name: (root / name).read_bytes() for name in solution},
            {name: (root / made).read_bytes() for name, made in zip(solution, example)},
            {name: (root / name).read_bytes() for name in tests},
        )


def _files(path: Path) -> list[list[str]]:
    """Return the paths of the solution, the tests and the example that a configuration names."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise PackageError(f"{path}: not JSON ({error})") from None
    files = found.get("files", {}) if isinstance(found, dict) else None
    if not isinstance(files, dict):
        raise PackageError(f"{path}: files must be an object")
    named = [files.get(key, []) for key in ("solution", "test", "example")]
    if not all(isinstance(names, list) and all(map(_is_inside, names)) for names in named):
        raise PackageError(f"{path}: files.solution, test and example must be lists of paths inside the exercise")
    return named


def _is_inside(name: object) -> bool:
    return isinstance(name, str) and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


EXERCISM = ExerciseCollection(
    "exercism", read_exercism, "NAME/.meta/config.json with files.solution, files.test and files.example in Python"
)
