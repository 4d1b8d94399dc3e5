"""Gates: synthetic tasks pass them, and each kind of bad task is caught by the gate meant for it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from woodshed.record.task import Task, save_task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic
from woodshed.tasks.validate.gates import GateReport, check_task


def _variant(task: Task, path: Path, **changes: object) -> Task:
    """The task written again with other files or info."""
    files = {
        "workspace": task.workspace_files(),
        "tests": task.test_files(),
        "solution": task.solution_files(),
    }
    info = dataclasses.replace(task.info, **{k: v for k, v in changes.items() if k not in files})  # type: ignore[arg-type]
    files = {k: {**v, **changes.get(k, {})} for k, v in files.items()}  # type: ignore[dict-item]
    return save_task(path, name=task.name, instruction=task.instruction, info=info, **files)


def test_gates(tmp_path: Path) -> None:
    if not open_backend().probe().ok:
        pytest.skip("no namespace sandbox here")
    tasks = [
        write_synthetic(s, tmp_path / f"good{n}") for n, s in enumerate(draw_synthetic(6, split="heldout", seed=2))
    ]
    task = tasks[0]
    broken = next(iter(task.solution_files()))
    fix, bug = task.solution_files()[broken], task.workspace_files()[broken]
    info = task.info
    bad = {
        "fail_to_pass": {"fail_to_pass": ()},
        "pass_to_pass": {"pass_to_pass": ()},
        "oracle": {"solution": {broken: bug}},
        "solution": {"submission": ("other.py",)},
        "no_op": {"workspace": {broken: fix}},
        "guards": {
            "pass_to_pass": (*info.pass_to_pass[1:], info.fail_to_pass[0]),
            "fail_to_pass": info.fail_to_pass[1:],
        },
        "reason": {"fail_to_pass": (*info.fail_to_pass, "absent::0")},
        "leak": {"workspace": {"notes.md": b"the answer:\n" + fix}},
        "files": {"workspace": {"cache.bin": b"\0\1\2"}},
    }
    variants = {gate: _variant(task, tmp_path / gate, **changes) for gate, changes in bad.items()}

    async def run() -> tuple[list[GateReport], dict[str, GateReport]]:
        backend, layers = open_backend(), LayerStore(tmp_path / "layers")
        try:
            good = [await check_task(t, backend, layers) for t in tasks]
            return good, {gate: await check_task(t, backend, layers) for gate, t in variants.items()}
        finally:
            await backend.close()

    good, reports = asyncio.run(run())
    assert [str(r) for r in good if not r.passed] == []
    for gate, report in reports.items():
        assert gate in report.failures, str(report)
        assert not report.passed
