"""``woodshed tasks install --tasks``: a task of each install that was proved."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.catalogue import load_catalogue
from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.generators.packages.rejected import Rejected
from woodshed.tasks.generators.packages.stream import STAGING, clear_staging
from woodshed.tasks.sources.factory import claim
from woodshed.tasks.sources.spec import parse_source

from .command import InstallWishes
from .lock import NAME, Install, load_install
from .run import Outcome, ground_of
from .space import Boxes
from .task import make_install_task
from .use import only_wheels


async def install_tasks(
    outcomes: Sequence[Outcome], backend: Backend, layers: LayerStore, installs: Path, out: Path,
    wishes: InstallWishes, progress: Callable[[int, int, str], None] | None = None, cache: Path | None = None,
) -> tuple[list[Task], dict[str, str]]:  # fmt: skip
    """(tasks, source -> why it became none) of those ``outcomes`` that are installs in the folder ``installs``.

    What ``out`` holds already is kept. Raises PackageError where ``out`` cannot be used.
    """
    found = {load_install(path.parent).origin: path.parent for path in sorted(installs.glob(f"*/{NAME}"))}
    proved = [outcome.install for outcome in outcomes if outcome.install is not None]
    depot = [wheel for folder in found.values() for wheel in only_wheels(load_install(folder).served)]
    base = load_catalogue(Path(wishes.catalogue) if wishes.catalogue else None).wheels["pytest"]
    made: list[Task] = []
    refused: dict[str, str] = {}
    with claim(out, "task.toml"):
        clear_staging(out)
        for number, install in enumerate(proved):
            if progress:
                progress(number, len(proved), f"{install.origin}: making its task, running its gates")
            target = out / f"{found[install.origin].name}-install"
            known = _known(target, install)
            if known is not None:
                made.append(known)
                continue
            try:
                ground = await asyncio.to_thread(
                    ground_of, parse_source(_stated(install)), found[install.origin].name, base, installs,
                    code=wishes.code, tests=wishes.tests, roots=wishes.roots, markers=wishes.markers, cache=cache,
                )  # fmt: skip
                if ground.package.sha256 != install.source:
                    raise Rejected("its source has other bytes by now; install it into another folder")
                staged = out / f"{STAGING}{target.name}"
                await make_install_task(ground, install, depot, Boxes(backend, layers), staged)
                shutil.rmtree(target, ignore_errors=True)
                staged.rename(target)
                made.append(Task.load(target))
            except (Rejected, PackageError) as error:
                refused[install.origin] = str(error)
    return made, refused


def _stated(install: Install) -> str:
    return f"{install.origin}@{install.commit}" if install.commit else install.origin


def _known(target: Path, install: Install) -> Task | None:
    """The task that is there, if it is of this install."""
    try:
        task = Task.load(target)
    except TaskError:
        return None
    return task if task.info.provenance.get("install") == install.digest else None
