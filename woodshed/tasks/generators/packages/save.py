"""Write a candidate whose tests fail as a task directory."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from woodshed.grading.pytest_grader import TESTS_PREFIX
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.dependencies import python_path
from woodshed.tasks.packages.harbor import pytest_check, python_image
from woodshed.tasks.packages.prepare import WORKDIR
from woodshed.tasks.packages.workspace import is_test, protected_globs, submission_globs


@dataclass(frozen=True)
class Draft:
    """Everything that the files of a task depend on. ``workspace``: the package in the state in which its tests pass;
    ``start``: as the agent gets it; ``gold``: the solution; ``broken`` and ``whole``: the required tests that fail and
    that pass in ``start``; ``seconds``: their time in all; ``test_timeout``: seconds for one test."""

    candidate: Candidate
    package: Package
    workspace: Mapping[str, bytes]
    start: Mapping[str, bytes]
    gold: Mapping[str, bytes]
    broken: Sequence[str]
    whole: Sequence[str]
    seconds: float
    layers: tuple[str, ...]
    test_timeout: float
    instruction: str


@dataclass(frozen=True)
class Form:
    """How tasks of one language are written. ``is_test``: whether a file of the package belongs to the grader;
    ``submission`` and ``protected``: globs; ``command``: the test command of the agent; ``check`` and ``image``: files
    of ``tests/`` and ``environment/`` for other Harbor tools; ``environment``: further entries of that table."""

    grader: str
    is_test: Callable[[Package, str], bool]
    submission: Callable[[Package], tuple[str, ...]]
    protected: Callable[[Package], tuple[str, ...]]
    command: Callable[[Draft], str]
    check: Callable[[TaskInfo, Draft], dict[str, bytes]]
    image: Callable[[Package], dict[str, bytes]]
    environment: Callable[[Package], dict[str, Any]]


def save_draft(
    draft: Draft,
    out: Path,
    form: Form,
    quality: Mapping[str, str] | None = None,
    own_values: Mapping[str, str] | None = None,
) -> Task:
    """Write the task to ``out``; existing files are overwritten."""
    package, candidate, is_test = draft.package, draft.candidate, form.is_test
    required = {t.partition("::")[0] for t in (*draft.broken, *draft.whole)}
    kept = _kept(package, draft.workspace, required)
    tests = {TESTS_PREFIX + n: d for n, d in draft.workspace.items() if n in kept and is_test(package, n)}
    workspace = {n: d for n, d in draft.start.items() if n in kept or n not in draft.workspace}
    info = TaskInfo(
        family="package",
        split=candidate.split,
        key=candidate.key,
        grader=form.grader,
        kind=candidate.detail,
        workdir=WORKDIR,
        submission=form.submission(package),
        protected=form.protected(package),
        fail_to_pass=tuple(draft.broken),
        pass_to_pass=tuple(draft.whole),
        test_command=form.command(draft),
        layers=draft.layers,
        timeout_sec=_timeout(draft),
        provenance=_provenance(package, candidate),
        quality=dict(quality or {}),
        own_values=dict(own_values or {}),
        start=package.start,
    )
    return save_task(
        out,
        name=f"woodshed/{candidate.slug}",
        instruction=draft.instruction,
        info=info,
        workspace=workspace,
        tests={**form.check(info, draft), **tests},
        solution=dict(draft.gold),
        environment=form.image(package),
        config={"environment": {"network_mode": "no-network", "workdir": WORKDIR, **form.environment(package)}},
    )


def _timeout(draft: Draft) -> float:
    """Seconds for the required tests on a busy machine; pytest's overhead per test is not in the measured times."""
    tests = len(draft.broken) + len(draft.whole)
    return float(max(draft.test_timeout * 3, round(20 * draft.seconds + 0.05 * tests)))


def _provenance(package: Package, candidate: Candidate) -> dict[str, str]:
    stated = {
        "package": package.name,
        "version": package.version,
        "sha256": package.sha256,
        "licence": package.licence,
        "function": candidate.function.name,
        "file": candidate.function.module,
        "source": package.origin or f"pypi:{package.name}=={package.version}",
        "commit": package.commit,
        "generator": candidate.kind,
    }
    if package.built:
        stated["built"] = ", ".join(package.built)
    if candidate.also:
        stated["also"] = ", ".join(f.place for f in candidate.also)
    if candidate.level:
        stated["level"] = candidate.level
    if candidate.origins:
        stated["hardened_from"] = ", ".join(candidate.origins)
    if candidate.commit is not None:
        commit = candidate.commit
        stated |= {"commit": commit.id, "base_commit": commit.parent}
        if commit.date:
            stated["commit_date"] = commit.date
    return {**stated, **candidate.stated}


def _kept(package: Package, workspace: Mapping[str, bytes], required: set[str]) -> frozenset[str]:
    """Names of the workspace, without test modules that hold no required test and that no kept file mentions."""
    spare = {n for n in workspace if is_test(package, n) and is_test_module(n)} - required
    while True:
        texts = b"\n".join(d for n, d in workspace.items() if n.endswith(".py") and n not in spare)
        words = set(re.findall(rb"\w+", texts))
        used = {n for n in spare if PurePosixPath(n).stem.encode() in words}
        if not used:
            return frozenset(workspace) - spare
        spare -= used


def _command(draft: Draft) -> str:
    files = dict.fromkeys(t.partition("::")[0] for t in (*draft.broken, *draft.whole))
    hidden = bool(draft.candidate.instance) and any(draft.start.get(f) != draft.workspace[f] for f in files)
    if draft.candidate.commit is None and not hidden:
        return test_command(draft.broken, draft.whole)
    # The grading tests are not in the workspace: run the whole files of the tests that the agent has.
    there = [name for name in files if name in draft.start]
    return " ".join(["python -m pytest -q -x", *map(shlex.quote, there)])


def test_command(broken: Sequence[str], whole: Sequence[str], most: int = 6) -> str:
    """The test command of an agent: the failing tests and a few that pass, each with all its parameters."""
    functions = list(dict.fromkeys(t.partition("[")[0] for t in broken))[:most]
    functions += [f for f in dict.fromkeys(t.partition("[")[0] for t in whole) if f not in functions][: most // 2]
    by_file = Counter(f.partition("::")[0] for f in functions)
    ordered = sorted(functions, key=lambda f: list(by_file).index(f.partition("::")[0]))
    return "python -m pytest -q -x " + " ".join(map(shlex.quote, ordered))


test_command.__test__ = False  # type: ignore[attr-defined]


def is_test_module(name: str) -> bool:
    """Return whether pytest would look for tests in a file of this name."""
    path = PurePosixPath(name)
    return path.suffix == ".py" and (path.stem.startswith("test_") or path.stem.endswith("_test"))


def _check(info: TaskInfo, draft: Draft) -> dict[str, bytes]:
    return pytest_check(info, python_path(draft.package, WORKDIR), draft.start)


def _image(package: Package) -> dict[str, bytes]:
    return python_image(package, _environment(package)["env"], WORKDIR)


def _environment(package: Package) -> dict[str, Any]:
    return {"env": {"PYTHONPATH": ":".join(python_path(package, WORKDIR)), "PYTHONDONTWRITEBYTECODE": "1"}}


PYTHON_FORM = Form(
    grader="pytest",
    is_test=is_test,
    submission=submission_globs,
    protected=protected_globs,
    command=_command,
    check=_check,
    image=_image,
    environment=_environment,
)
