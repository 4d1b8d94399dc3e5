"""One place to build in for all tests of this folder, and what one build there made."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from woodshed.record.task import Task

from . import repos
from .place import SINGLE, Place, place_in


@pytest.fixture(scope="package", autouse=True)
def _dated() -> Iterator[None]:
    """Every commit bears one date, and so the same id in every run.

    The other inputs on which the gates judge a task are drawn from its name, which holds the commit. In some draws, the
    answers by heart are right on most of the few inputs of such a small task, and the task is rejected.
    """
    with pytest.MonkeyPatch.context() as patch:
        for whose in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{whose}_DATE", "2024-01-02T00:00:00Z")
        yield


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("sources")) as found:
        yield found


@dataclass
class Built:
    """Tasks of one git repository, made through the command line."""

    repository: Path
    commit: str
    out: Path
    tasks: list[Task]
    said: subprocess.CompletedProcess[str]


@pytest.fixture(scope="package")
def built(place: Place) -> Built:
    repository, out = place.root / "prices", place.root / "made"
    commit = repos.repository(repository, {**repos.PROJECT, "LICENSE": repos.MIT})
    said = place.command(
        "build",
        repository,
        "--out",
        out,
        "--per-source",
        "3",
        "--catalogue",
        place.catalogue,
        "--heldout-share",
        "0.5",
        *SINGLE,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    tasks = [Task.load(path.parent) for path in sorted(out.glob("*/task.toml"))]
    return Built(repository, commit, out, tasks, said)
