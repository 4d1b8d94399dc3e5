"""A task checked as any Harbor tool does it: its own test.sh, in a box with its layers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.taskbox import box_spec

Change = Mapping[str, bytes | None]
"""Files relative to the workdir as an agent left them; None where it deleted one."""


def rewards(task: Task, layers: LayerStore, changes: Sequence[Change]) -> list[tuple[str, str]]:
    """(reward, what test.sh said) after each of the changes, in a box of its own."""
    return asyncio.run(_rewards(task, layers, changes))


async def _rewards(task: Task, layers: LayerStore, changes: Sequence[Change]) -> list[tuple[str, str]]:
    backend = open_backend("namespace")
    try:
        return [await _reward(backend, task, layers, change) for change in changes]
    finally:
        await backend.close()


async def _reward(backend: Backend, task: Task, layers: LayerStore, change: Change) -> tuple[str, str]:
    box = await backend.create(box_spec(task, layers))
    try:
        await box.put({f"/workspace/{name}": data for name, data in change.items() if data is not None})
        for name in (name for name, data in change.items() if data is None):
            await box.delete(f"/workspace/{name}")
        await box.put({f"/tests/{name}": data for name, data in task.test_files().items()})
        done = await box.exec("sh /tests/test.sh; echo; cat /logs/verifier/reward.txt", cwd="/", timeout=120)
        said, _, reward = done.stdout.decode().rstrip().rpartition("\n")
        return reward, said + done.stderr.decode()
    finally:
        await box.close()
