"""One real package from the index that pip is configured with. Skipped only where that index cannot be reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.packages.build import build_package_tasks
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings


def test_tasks_from_a_real_package(tmp_path: Path) -> None:
    settings = PackageTaskSettings(packages=("simpleeval",), tasks_per_package=1, kinds=("mutate",))

    async def build() -> list[Task]:
        backend = open_backend("namespace")
        try:
            if not (probe := backend.probe()).ok:
                pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
            return await build_package_tasks(settings, backend, LayerStore(tmp_path / "layers"), tmp_path / "tasks")
        finally:
            await backend.close()

    try:
        tasks = asyncio.run(build())
    except PackageError as error:
        if "cannot be reached" not in str(error) and "download failed" not in str(error):
            raise
        pytest.skip(str(error))
    assert len(tasks) == 1
    for task in tasks:
        assert task.info.provenance["package"] == "simpleeval"
        assert task.info.fail_to_pass and task.info.pass_to_pass
        assert all(test.startswith("tests/test_") for test in task.info.fail_to_pass)
