"""The snapshot that the boxes of a trial are forked from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.services import ServicesError
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.generators.prompts.write import Writer
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.prepare import Suite
from woodshed.tasks.settings import PackageTaskSettings


def test_no_snapshot_is_left_where_services_do_not_start(tmp_path: Path) -> None:
    package = Package(
        name="p", version="1", file="f", sha256="", licence="MIT", sources=("a.py",), tests=("t",), start="exit 3"
    )

    async def main() -> None:
        backend = NamespaceBackend(tmp_path / "state")
        trial = Trial(
            settings=PackageTaskSettings(),
            package=package,
            suite=Suite(package="p", tests={}, functions=(), unstable={}, seconds=0.0),
            workspace={"a.py": b"x = 1\n"},
            backend=backend,
            layers=LayerStore(tmp_path / "layers"),
            layer_names=(),
            writer=Writer(PackageTaskSettings()),
        )
        try:
            with pytest.raises(ServicesError, match="ended with 3"):
                await trial.fork()
            await trial.close()
            assert not backend._snapshots
        finally:
            await backend.close()

    asyncio.run(main())
