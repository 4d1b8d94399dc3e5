"""A policy removes a feature: what it did passes the gates of every other deletion, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.tasks.sources import repos
from tests.tasks.sources.place import Place
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.report import BuildReport, Rejected
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.pipeline.agentic import Proposer, removal_of
from woodshed.tasks.pipeline.build import build_from_sources
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.check import check_folders

from .policy import FINISH, call, scripted_policy

MODULE = "src/prices/__init__.py"
ATTEMPTS = {
    "the tests were changed": "sed -i 's/== 6/== 7/' tests/test_prices.py",
    "the package no longer imports": f"sed -i '12,16d' {MODULE}",  # of the gates: the tests import it by name
    "": f"sed -i '6,9c\\    raise NotImplementedError' {MODULE}",
}
CODE = repos.CODE.decode()
LINES = CODE.split("\n")
REFUSED: dict[str, dict[str, str]] = {
    "nothing was removed": {},
    "code was added": {MODULE: CODE.replace("return whole - whole", "return whole + whole")},
    "files were added or deleted": {"src/prices/spare.py": "x"},
    "no test runs what was removed": {MODULE: "\n".join(LINES[1:])},
    "the module does not parse any more": {MODULE: "\n".join([*LINES[:4], *LINES[9:]])},
    "what was changed is not code": {"src/prices/rates.txt": "pass"},
}  # fmt: skip


def test_what_a_policy_removes_becomes_a_task_or_is_refused(market: Place, tmp_path: Path) -> None:
    folder, out = repos.write(tmp_path / "plain", repos.PROJECT), tmp_path / "out"
    settings = PackageTaskSettings(catalogue=str(market.catalogue), tasks_per_package=1, attempts=len(ATTEMPTS))
    report = BuildReport()

    with scripted_policy() as policy:
        policy.says(*[turn for command in ATTEMPTS.values() for turn in (call("run_command", command=command), FINISH)])

        async def work(backend: Backend, layers: LayerStore) -> list[Task]:
            try:
                return await build_from_sources(
                    [str(folder)], settings, backend, layers, out, report=report, propose=Proposer(policy.open, out)
                )
            finally:
                await policy.close()

        (task,) = market.boxes(work)
        rejected = {why: count for line in report.packages for why, count in line.rejected.items()}
        assert rejected == {why: 1 for why in ATTEMPTS if why}
        assert len(policy.roles) == len(ATTEMPTS) and "tests" in policy.prompts[0]

        (verdict,) = market.boxes(lambda backend, layers: check_folders([out], backend, layers))
        assert verdict.passed, verdict
        assert task.info.kind == "agentic_delete" and task.info.provenance["function"] == "total"
        assert (task.workspace / MODULE).read_text().count("raise NotImplementedError") == 1
        assert task.solution_files() == {MODULE: repos.CODE}

        policy.says()  # nobody is asked again
        again = market.boxes(work)
        assert again == [task] and len(policy.roles) == len(ATTEMPTS)


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_removal_is_refused(why: str) -> None:
    package = Package("plain", "1", "x", "0" * 64, "MIT", ("src/prices",), ("tests",))
    names = ("total", "cheapest", "split")
    functions = tuple(CoveredFunction(MODULE, name, 1, 2, 3, ("tests/test_prices.py::test",)) for name in names)
    suite = Suite("plain", {"tests/test_prices.py::test": 0.1}, functions, {}, 0.1)
    files = {MODULE: CODE, "src/prices/other.py": "x = 1\n", "src/prices/rates.txt": "1"}
    trial = SimpleNamespace(
        package=package,
        suite=suite,
        settings=PackageTaskSettings(),
        workspace={n: t.encode() for n, t in files.items()},
    )
    left = {name: text.encode() for name, text in {**files, **REFUSED[why]}.items()}
    with pytest.raises(Rejected, match=f"^{why}$"):
        removal_of(cast(Trial, trial), {**left, "src/prices/__pycache__/x.pyc": b"0"})
