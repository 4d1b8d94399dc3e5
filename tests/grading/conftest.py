"""A study on disk and real boxes to grade it in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.studies import StudySpec, draw_studies, write_study

T = TypeVar("T")
WithBackend = Callable[[Backend, LayerStore], Awaitable[T]]


@pytest.fixture(scope="session")
def study_specs() -> list[StudySpec]:
    return draw_studies(12, split="train", seed=21, workers=1)


@pytest.fixture(scope="session")
def studies(study_specs: list[StudySpec], tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    root = tmp_path_factory.mktemp("studies")
    return [write_study(spec, root / str(number)) for number, spec in enumerate(study_specs)]


@pytest.fixture(scope="session")
def in_boxes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[WithBackend[T]], T]:
    """Runs an async function with a sandbox backend and a layer store, and closes the backend."""
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    layers = LayerStore(tmp_path_factory.mktemp("layers") / "store")

    def run(function: WithBackend[T]) -> T:
        async def main() -> T:
            backend = open_backend()
            try:
                return await function(backend, layers)
            finally:
                await backend.close()

        return asyncio.run(main())

    return run
