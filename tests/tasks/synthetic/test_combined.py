"""Synthetic tasks with several bugs: each has to be repaired, none shows the repair of another."""

from __future__ import annotations

import asyncio
import json
from itertools import combinations
from pathlib import Path

import pytest

from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.rl.curriculum import features
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.change import generator_of
from woodshed.tasks.generators.synthetic import (
    VISIBLE,
    SyntheticSpec,
    bugs_of,
    draw_combined,
    split_of,
    write_synthetic,
)
from woodshed.tasks.generators.synthetic.worker import build_combined, failing_cases
from woodshed.tasks.validate.gates import GateReport, check_task

KINDS = [("compare", "binop"), ("constant", "constant"), ("compare", "swap", "negate"), ("call",) * 4]


@pytest.fixture(scope="module")
def specs() -> list[SyntheticSpec]:
    return [build_combined("train", 3, f"org/{number}", kinds) for number, kinds in enumerate(KINDS)]


def test_every_module_with_a_bug_has_one_of_its_own_that_a_visible_case_kills(specs: list[SyntheticSpec]) -> None:
    for spec, kinds in zip(specs, KINDS):
        assert spec.kinds == tuple(sorted(kinds)) and len(spec.modules) == max(3, len(kinds))
        assert len({bug.module for bug in spec.bugs}) == len(spec.bugs) == len(kinds)
        assert {split_of(key) for key in spec.keys} == {"train"}
        for bug in spec.bugs:
            function = spec.functions[bug.module]
            assert failing_cases(bug.mutation.source, function.name, function.cases) == bug.failing
            assert bug.failing[0] < VISIBLE <= bug.failing[-1]
        assert SyntheticSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_name_decides_everything(specs: list[SyntheticSpec]) -> None:
    assert draw_combined("org/0", KINDS[0], split="train", seed=3) == specs[0]
    assert build_combined("train", 3, "org/other", KINDS[0]) != specs[0]
    assert build_combined("train", 4, "org/0", KINDS[0]) != specs[0]


def test_a_kind_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"5000 functions of train gave no task .* compare, nosuch"):
        draw_combined("org/0", ["compare", "nosuch"], split="train", seed=0)


def test_only_all_repairs_together_solve_it(specs: list[SyntheticSpec], tmp_path: Path) -> None:
    if not open_backend().probe().ok:
        pytest.skip("no namespace sandbox here")
    tasks = [write_synthetic(spec, tmp_path / str(number)) for number, spec in enumerate(specs)]

    async def run() -> tuple[list[GateReport], list[tuple[Task, set[str], Outcome]]]:
        backend, layers = open_backend(), LayerStore(tmp_path / "layers")
        graded = []
        try:
            for task in tasks:
                repairs = task.solution_files()
                for count in range(len(repairs) + 1):
                    for some in combinations(repairs, count):
                        outcome = await grade(task, {name: repairs[name] for name in some}, backend, layers)
                        graded.append((task, set(some), outcome))
            return [await check_task(task, backend, layers) for task in tasks], graded
        finally:
            await backend.close()

    reports, graded = asyncio.run(run())
    assert [str(report) for report in reports if not report.passed] == []
    assert len(graded) == sum(2 ** len(kinds) for kinds in KINDS)
    for task, repaired, outcome in graded:
        assert outcome.resolved == (repaired == set(task.solution_files()))
        still = {test.partition("::")[0] for test, status in outcome.tests.items() if status != "passed"}
        assert {f"{module}.py" for module in still} == set(task.solution_files()) - repaired


def test_what_they_have_in_common_is_stated(specs: list[SyntheticSpec], tmp_path: Path) -> None:
    task = write_synthetic(specs[0], tmp_path / "task")
    assert bugs_of(task) == ("binop", "compare") and generator_of(task) == "combine"
    assert features(task) == ("kind binop+compare", "by combine")
    assert task.instruction == f"fix: {' '.join(specs[0].modules)}"
