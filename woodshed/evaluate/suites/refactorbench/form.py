"""What a task of RefactorBench looks like as a task directory: its own tests where they expect to be, no solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.grading.pytest_grader import TESTS_PREFIX
from woodshed.record.task import WITHHELD, Task, TaskInfo, save_task
from woodshed.tasks.generators.packages.catalogue import Package
from woodshed.tasks.generators.packages.dependencies import MOUNT
from woodshed.tasks.generators.packages.harbor import pytest_check, python_image
from woodshed.tasks.generators.packages.prepare import WORKDIR

from .read import NAME, Refactoring, Repository

FOLDER = NAME
"""Where the test is laid, below the repository's root: it reads ``../NAME``."""
IMPORT_PATH = (MOUNT, f"{WORKDIR}/{FOLDER}")
"""``sys.path`` of the run: nothing that an agent wrote is on it."""

_CONFTEST = b'''"""The tests name files relative to their own folder, so they run in it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _in_this_folder():
    before = os.getcwd()
    os.chdir(Path(__file__).parent)
    yield
    os.chdir(before)
'''
# The repository's own conftest.py would import what is not installed.
_INI = f"[pytest]\naddopts = -p no:cacheprovider --confcutdir={FOLDER}\n".encode()


@dataclass(frozen=True)
class Found:
    """What the tests of a task say of the untouched repository. ``seconds``: of the slower run of all."""

    broken: Sequence[str]
    whole: Sequence[str]
    seconds: float


def test_file(task: Refactoring) -> str:
    """Where its test is laid. Names of RefactorBench's own files are no names of modules."""
    return f"{FOLDER}/test_{''.join(c if c.isalnum() else '_' for c in task.name)}.py"


test_file.__test__ = False  # type: ignore[attr-defined]


def grader_files(task: Refactoring) -> dict[str, bytes]:
    """What is laid over the repository: the test, and what makes it run in its folder."""
    return {test_file(task): task.test, f"{FOLDER}/conftest.py": _CONFTEST, "pytest.ini": _INI}


def save_refactoring(
    out: Path, slug: str, task: Refactoring, repository: Repository, level: str, found: Found,
    runner: Package, layers: tuple[str, ...], test_timeout: float,
) -> Task:  # fmt: skip
    """Write the task directory. ``runner``: what needs the ``layers``; ``test_timeout``: least seconds for one test."""
    project = task.repository.removesuffix("_refactor")
    info = TaskInfo(
        family="package", split="heldout", key=f"{NAME}:{project}:{task.name}", grader="pytest", kind="refactor",
        workdir=WORKDIR, submission=task.reads, protected=(f"{FOLDER}/**", "pytest.ini"),
        fail_to_pass=tuple(found.broken), pass_to_pass=tuple(found.whole), layers=layers,
        timeout_sec=max(test_timeout * 3, round(20 * found.seconds)),
        provenance={
            "package": f"{NAME}-{project}", "version": repository.sha256[:12], "sha256": repository.sha256,
            "licence": repository.licence, "source": f"{NAME}:{task.repository}/{task.name}", "generator": NAME,
            "level": level, "reference": WITHHELD,
        },
    )  # fmt: skip
    tests = {TESTS_PREFIX + name: data for name, data in grader_files(task).items()}
    env = {"PYTHONPATH": ":".join(IMPORT_PATH), "PYTHONDONTWRITEBYTECODE": "1"}
    environment: Mapping[str, object] = {"network_mode": "no-network", "workdir": WORKDIR, "env": env}
    check = pytest_check(info, IMPORT_PATH, repository.files)
    return save_task(
        out, name=f"woodshed/{slug}", instruction=task.instructions[level], info=info,
        workspace=dict(repository.files), tests={**check, **tests}, solution={}, config={"environment": environment},
        environment=python_image(runner, env, WORKDIR),
    )  # fmt: skip
