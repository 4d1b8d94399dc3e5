"""A published collection as a suite: its tasks are built and validated like by ``woodshed tasks build``, all held
out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from woodshed.record.task import Task
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.build import BuildCollection, build_from_sources
from woodshed.tasks.settings import PackageTaskSettings

from .base import LoadSuite, SuiteContext, SuiteError

_ALL = 1_000_000


def collected(name: str, builder: BuildCollection) -> LoadSuite:
    """Return the suite of a collection. Its tasks are in ``context.out/NAME``; an interrupted build continues there."""

    async def load(source: str, context: SuiteContext) -> list[Task]:
        settings = PackageTaskSettings(
            tasks_per_package=_ALL,
            heldout_share=1.0,
            heldout_packages=(name,),
            catalogue=context.catalogue,
            parallel=context.parallel,
        )
        _, _, path = source.partition(":")
        absolute = f"{name}:{Path(path).expanduser().absolute()}"
        collections: Mapping[str, BuildCollection] = {name: builder}
        try:
            return await build_from_sources(
                [absolute],
                settings,
                context.backend,
                context.layers,
                context.out / name,
                lambda done, total, note: context.progress(done, total, f"building {name}: {note}"),
                collections=collections,
            )
        except PackageError as error:
            raise SuiteError(f"--suite {source}: {error}") from None

    return load
