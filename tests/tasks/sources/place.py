"""A place to build in: a file index with the test runner, a cache, and the command line in front of both."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from real_runs import own_cache, woodshed

from tests.tasks.packages import tiny
from woodshed.evaluate.suites.by_name import COLLECTIONS
from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.build import Progress
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.pipeline.build import build_from_sources
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.root_leaks import index_of_host

T = TypeVar("T")
SINGLE = ("--kind", "mutate", "--kind", "delete_function", "--mutants", "1", "--exploits", "0")
"""Options of a build of single changes, and of nothing that takes long."""


@dataclass
class Place:
    """``root`` holds everything; ``catalogue`` pins the test runner of this environment."""

    root: Path
    catalogue: Path
    environment: dict[str, str] = field(default_factory=dict)

    def boxes(self, work: Callable[[Backend, LayerStore], Awaitable[T]]) -> T:
        async def run() -> T:
            backend = open_backend("namespace")
            try:
                return await work(backend, LayerStore(self.root / "cache" / "layers"))
            finally:
                await backend.close()

        return asyncio.run(run())

    def build(
        self,
        *sources: str,
        out: Path,
        wishes: Wishes | None = None,
        report: BuildReport | None = None,
        progress: Progress | None = None,
        **settings: object,
    ) -> list[Task]:
        values = {"catalogue": str(self.catalogue), "tasks_per_package": 2, **settings}
        chosen = PackageTaskSettings.model_validate(values)
        return self.boxes(
            lambda backend, layers: build_from_sources(
                sources, chosen, backend, layers, out, progress, wishes=wishes, collections=COLLECTIONS, report=report
            )
        )

    def command(self, *arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """``woodshed tasks ...`` to its end."""
        return woodshed(self.root, "tasks", *arguments, extra={**self.environment, **more})


@contextmanager
def place_in(root: Path) -> Iterator[Place]:
    """A place, its index and its cache in force; skips where there are no boxes."""
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    found = Place(root, tiny.local_index(root))
    index_of_host()
    found.environment = {"PIP_INDEX_URL": f"file://{root}/simple", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**found.environment, "WOODSHED_CACHE": str(own_cache(root / "cache"))}.items():
            patch.setenv(key, value)
        yield found
