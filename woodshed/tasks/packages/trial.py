"""One candidate tried in boxes: which tests the change breaks, then the finished task graded as it will be.

A candidate becomes a task only if its change fails at least one test and spares at least one, if the task as written
to disk scores nothing untouched and everything with the reference solution, and if nothing in it leaks the answer.
"""

from __future__ import annotations

import random
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from woodshed.grading.pytest_grader import TESTS_PREFIX, PytestRun, grade_pytest, run_pytest
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, Snapshot
from woodshed.sandbox.taskbox import box_spec
from woodshed.tasks.leaks import scan_task

from .candidates import Candidate
from .catalogue import Package
from .dependencies import python_path
from .instruction import bug_report, feature_request, located_bug_report, pointed_bug_report
from .prepare import WORKDIR, Suite
from .settings import PackageTaskSettings
from .workspace import is_test, protected_globs, submission_globs

STAGING = ".new-"
"""Prefix of folders that hold a task which has not passed its checks yet."""

_SPARED = 8  # tests of the same files that do not run the function, required to keep passing


class Rejected(Exception):
    """The candidate is no good task; the message is the reason, as counted in the yield table."""


class Trial:
    """Tries the candidates of one package. ``base`` is a snapshot of its box with the pristine workspace."""

    def __init__(
        self,
        settings: PackageTaskSettings,
        package: Package,
        suite: Suite,
        workspace: Mapping[str, bytes],
        backend: Backend,
        layers: LayerStore,
        layer_names: tuple[str, ...],
        base: Snapshot,
    ) -> None:
        self.settings, self.package, self.suite, self.workspace = settings, package, suite, workspace
        self.backend, self.layers, self.layer_names, self.base = backend, layers, layer_names, base
        self.path = python_path(package, WORKDIR)

    async def run(self, candidate: Candidate, out: Path) -> Task:
        """The finished task in ``out``, which appears there when it has passed. Raises Rejected."""
        covering = self.suite.select(candidate.function, 2 * self.settings.max_tests, self.settings.max_test_seconds)
        files = {test.partition("::")[0] for test in covering}
        spared = [t for t in self.suite.tests if t.partition("::")[0] in files and t not in candidate.function.tests]
        spared.sort(key=lambda t: (self.suite.tests[t], t))
        run = await self._changed_run(candidate, [*covering, *spared[:_SPARED]])
        broken = [t for t, r in run.results.items() if r.status in ("failed", "error")]
        whole = [t for t, r in run.results.items() if r.status == "passed"]
        if not broken:
            raise Rejected("no test fails")
        if any("TimeLimit" in run.results[t].text for t in broken):
            raise Rejected("a test hangs")
        if not whole:
            raise Rejected("no test still passes")
        whole = whole[: max(1, self.settings.max_tests - len(broken))]
        # In an order that no measured time decides; tests that run the function stay first.
        broken.sort()
        whole.sort(key=lambda test: (test not in candidate.function.tests, test))
        staging = out.with_name(STAGING + out.name)
        try:
            await self._check(self._save(candidate, staging, broken, whole, run))
            shutil.rmtree(out, ignore_errors=True)  # what is there was never noted as kept
            staging.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return Task.load(out)

    async def _changed_run(self, candidate: Candidate, tests: list[str]) -> PytestRun:
        (box,) = await self.backend.fork(self.base)
        try:
            await box.write(f"{WORKDIR}/{candidate.function.module}", candidate.source)
            run = await run_pytest(
                box, sorted({t.partition("::")[0] for t in tests}), tests, path=self.path, workdir=WORKDIR,
                timeout=90.0, test_timeout=5.0 + 8 * max(self.suite.tests[t] for t in tests),
            )  # fmt: skip
        finally:
            await box.close()
        if run.detail.startswith("timed out"):
            raise Rejected("the run hangs")
        if not run.results:
            raise Rejected("the package no longer imports")
        if not run.complete:
            raise Rejected("the run ends early")
        return run

    async def _check(self, task: Task) -> None:
        """The grader's own verdict on the untouched workspace and on the solution, each in a fresh box; then leaks."""
        for submission, expected in (({}, False), (task.solution_files(), True)):
            box = await self.backend.create(box_spec(task, self.layers))
            try:
                await box.put({f"{WORKDIR}/{name}": data for name, data in submission.items()})
                outcome = await grade_pytest(task, box, submission)
            finally:
                await box.close()
            if outcome.resolved != expected:
                raise Rejected("the solution does not pass" if expected else "the untouched workspace passes")
            if not expected:
                wrong = [t for t in task.info.fail_to_pass if outcome.tests[t] == "passed"]
                wrong += [t for t in task.info.pass_to_pass if outcome.tests[t] != "passed"]
                if wrong:
                    raise Rejected("results change from run to run")
        if scan_task(task):
            raise Rejected("the answer leaks")

    def _instruction(self, candidate: Candidate, broken: list[str], run: PytestRun) -> str:
        module, name, rng = candidate.function.module, candidate.function.name, random.Random(candidate.slug)
        first = min(broken, key=lambda t: (len(run.results[t].text) > 400, len(run.results[t].text), t))
        observed = run.results[first].text
        if candidate.kind == "delete_function":
            return feature_request(rng, module, name, self.workspace[module].decode(), first)
        source = candidate.source.decode()
        if self.settings.prompt == "located":
            return located_bug_report(rng, module, name, source, first, observed)
        if self.settings.prompt == "pointed":
            return pointed_bug_report(rng, module, name, source, first, observed, candidate.line)
        return bug_report(rng, module, first, observed)

    def _save(self, candidate: Candidate, out: Path, broken: list[str], whole: list[str], run: PytestRun) -> Task:
        module, package = candidate.function.module, self.package
        instruction = self._instruction(candidate, broken, run)
        files = self._kept({t.partition("::")[0] for t in (*broken, *whole)})
        tests = {TESTS_PREFIX + n: d for n, d in files.items() if is_test(package, n)}
        slowest = sum(self.suite.tests[t] for t in (*broken, *whole))
        info = TaskInfo(
            family="package", split=candidate.split, key=candidate.key, grader="pytest", kind=candidate.detail,
            workdir=WORKDIR, submission=submission_globs(package), protected=protected_globs(package),
            fail_to_pass=tuple(broken), pass_to_pass=tuple(whole), test_command=test_command(broken, whole),
            layers=self.layer_names, timeout_sec=max(self.settings.test_timeout_sec * 3, round(20 * slowest)),
            provenance={
                "package": package.name, "version": package.version, "sha256": package.sha256,
                "licence": package.licence, "function": candidate.function.name, "file": module,
                "source": package.origin or f"pypi:{package.name}=={package.version}", "commit": package.commit,
                "generator": candidate.kind,
            },
        )  # fmt: skip
        return save_task(
            out,
            name=f"woodshed/{candidate.slug}",
            instruction=instruction,
            info=info,
            workspace={**files, module: candidate.source},
            tests={"test.sh": _test_script(info), **tests},
            solution={module: self.workspace[module]},
            config={
                "environment": {
                    "network_mode": "no-network", "workdir": WORKDIR,
                    "env": {"PYTHONPATH": ":".join(self.path), "PYTHONDONTWRITEBYTECODE": "1"},
                }
            },
        )  # fmt: skip

    def _kept(self, required: set[str]) -> dict[str, bytes]:
        """The workspace without the test modules that hold no required test and that no kept one imports."""
        spare = {n for n in self.workspace if is_test(self.package, n) and _is_test_module(n)} - required
        while True:
            texts = b"\n".join(d for n, d in self.workspace.items() if n.endswith(".py") and n not in spare)
            words = set(re.findall(rb"\w+", texts))
            used = {n for n in spare if PurePosixPath(n).stem.encode() in words}
            if not used:
                return {name: data for name, data in self.workspace.items() if name not in spare}
            spare -= used


def test_command(broken: list[str], whole: list[str], most: int = 6) -> str:
    """What an agent runs: the failing tests and a few that pass, by function (all their parameters)."""
    functions = list(dict.fromkeys(t.partition("[")[0] for t in broken))[:most]
    functions += [f for f in dict.fromkeys(t.partition("[")[0] for t in whole) if f not in functions][: most // 2]
    by_file = Counter(f.partition("::")[0] for f in functions)
    ordered = sorted(functions, key=lambda f: list(by_file).index(f.partition("::")[0]))
    return "python -m pytest -q -x " + " ".join(map(shlex.quote, ordered))


test_command.__test__ = False  # type: ignore[attr-defined]


def _is_test_module(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and (path.stem.startswith("test_") or path.stem.endswith("_test"))


def _test_script(info: TaskInfo) -> bytes:
    """For other Harbor tools: lays the tests over the workspace and writes the reward from pytest's exit status."""
    files = sorted({t.partition("::")[0] for t in (*info.fail_to_pass, *info.pass_to_pass)})
    chosen = " ".join(shlex.quote(f) for f in files)
    ids = sorted({*info.fail_to_pass, *info.pass_to_pass})
    lines = [
        "#!/bin/sh",
        f'cp -r "$(dirname "$0")/workspace/." {info.workdir}/',
        f"cd {info.workdir} || exit 1",
        f"# required: {len(ids)} tests of {chosen}; ids in task.toml, [metadata.woodshed]",
        "mkdir -p /logs/verifier",
        "reward=0",
        "python -m pytest -q " + " ".join(map(shlex.quote, ids)) + " && reward=1",
        "echo $reward > /logs/verifier/reward.txt",
    ]
    return ("\n".join(lines) + "\n").encode()
