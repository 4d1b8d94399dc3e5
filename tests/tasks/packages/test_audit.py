"""The audit of the factory's benchmark, on tasks of the tiny package: nothing is graded twice."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from woodshed.sandbox.backends.by_name import open_backend

from .conftest import Built

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import task_audit


def run(built: Built, honest: int, fakes: int) -> list[task_audit.Verdict]:
    async def work() -> list[task_audit.Verdict]:
        backend = open_backend("namespace")
        try:
            return await task_audit.audit(
                built.root / "tasks", backend, built.layers, honest=honest, fakes=fakes, parallel=2
            )
        finally:
            await backend.close()

    return asyncio.run(work())


def test_honest_solutions_and_fakes_are_graded_once(built: Built) -> None:
    log = built.root / "tasks" / ".audit.jsonl"
    first = run(built, 2, 2)
    numbers, detail = task_audit.figures(first)
    assert numbers == {"honest_tried": 2, "honest_refused": 0, "fakes_tried": 2, "fakes_accepted": 0}
    assert detail["wrong"] == [] and 2 <= detail["audited_tasks"] <= 3
    rows = log.read_text().splitlines()
    more = run(built, 4, 2)  # a killed start, or a larger number
    assert log.read_text().splitlines()[: len(rows)] == rows and len(log.read_text().splitlines()) == 6
    assert task_audit.figures(more)[0]["honest_tried"] == 4
    altered = [{**json.loads(row), "accepted": not json.loads(row)["accepted"]} for row in rows]
    log.write_text("".join(json.dumps(row) + "\n" for row in altered))
    numbers, detail = task_audit.figures(run(built, 2, 2))
    assert numbers == {"honest_tried": 2, "honest_refused": 2, "fakes_tried": 2, "fakes_accepted": 2}
    assert {wrong["kind"] for wrong in detail["wrong"]} == {"honest", "fake"}


def test_every_task_is_tried_before_any_is_tried_again(built: Built) -> None:
    wanted = list(task_audit.plan(built.tasks, task_audit.FAKE, 3 * len(built.tasks)))
    assert [task for task, _, _ in wanted] == [*built.tasks] * 3
    assert len({(task.name, name) for task, _, name in wanted}) == len(wanted)
    names = {name for _, _, name in task_audit.plan(built.tasks, task_audit.FAKE, 10_000)}
    assert any(name.startswith("stub ") for name in names) and len(names) > 20
