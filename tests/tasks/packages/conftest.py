"""Shared by the tests that need a box: one built set of tiny tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_runs import own_cache

from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.packages.build import build_package_tasks
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.settings import PackageTaskSettings

from . import tiny


@dataclass
class Built:
    root: Path
    settings: PackageTaskSettings
    layers: LayerStore
    tasks: list[Task]
    report: BuildReport


@contextmanager
def _index_and_cache(root: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", f"file://{root}/simple")
        patch.setenv("WOODSHED_CACHE", str(own_cache(root / "cache")))
        yield


@pytest.fixture(scope="package")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("packages")
    catalogue = tiny.local_index(root)
    settings = PackageTaskSettings(catalogue=str(catalogue), tasks_per_package=3, heldout_share=0.5, seed=3)
    layers = LayerStore(root / "layers")
    report = BuildReport()
    with _index_and_cache(root):
        return Built(root, settings, layers, asyncio.run(_build(settings, layers, root, report)), report)


@pytest.fixture(scope="module")
def built(_built: Built) -> Iterator[Built]:
    """Tasks of the tiny package, built once through the whole path from a file index; index and cache are in force."""
    with _index_and_cache(_built.root):
        yield _built


async def _build(settings: PackageTaskSettings, layers: LayerStore, root: Path, report: BuildReport) -> list[Task]:
    backend = open_backend("namespace")
    try:
        if not (probe := backend.probe()).ok:
            pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
        return await build_package_tasks(settings, backend, layers, root / "tasks", report=report)
    finally:
        await backend.close()
