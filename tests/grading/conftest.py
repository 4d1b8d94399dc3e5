"""A synthetic task on disk and real boxes to grade it in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.synthetic import SyntheticSpec, draw_synthetic, write_synthetic

T = TypeVar("T")
WithBackend = Callable[[Backend, LayerStore], Awaitable[T]]


@pytest.fixture(scope="session")
def synthetic_specs() -> list[SyntheticSpec]:
    return draw_synthetic(12, split="train", seed=21, workers=1)


@pytest.fixture(scope="session")
def synthetic_tasks(synthetic_specs: list[SyntheticSpec], tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    root = tmp_path_factory.mktemp("synthetic")
    return [write_synthetic(spec, root / str(number)) for number, spec in enumerate(synthetic_specs)]


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
