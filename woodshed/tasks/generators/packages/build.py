"""Build tasks from pinned packages: fetch, prepare, try candidates, keep the valid ones. Resumable.

Wherever a package comes from (the catalogue, the index, a repository, a folder), it is a pinned source distribution
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.changes.partition import kept_splits
from woodshed.tasks.generators.prompts.reword import Reworder
from woodshed.tasks.generators.prompts.write import Writer
from woodshed.tasks.packages.catalogue import Catalogue, Package, load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import fetch_package, read_sdist
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.splits import TWIN, heldout_beside, twins_of_heldout

from .proof import GATES
from .report import BuildReport, Ledger, PackageYield
from .stream import clear_staging
from .toolchain import PYTHON, Toolchain
from .work import PackageWork, Propose, Shared, drop

Progress = Callable[[int, int, str], None]
"""Called with (tasks so far, tasks wanted, what happened last)."""


async def build_package_tasks(
    settings: PackageTaskSettings,
    backend: Backend,
    layers: LayerStore,
    out: Path,
    progress: Progress | None = None,
    *,
    report: BuildReport | None = None,
    cache: Path | None = None,
) -> list[Task]:
    """Build the tasks of ``settings`` from the catalogue; see ``build_tasks``."""
    catalogue = load_catalogue(Path(settings.catalogue) if settings.catalogue else None)
    chosen = catalogue.select(settings.packages)
    return await build_tasks(
        settings=settings,
        catalogue=catalogue,
        chosen=chosen,
        backend=backend,
        layers=layers,
        out=out,
        progress=progress,
        report=report,
        cache=cache,
    )


async def build_tasks(
    settings: PackageTaskSettings,
    catalogue: Catalogue,
    chosen: Sequence[Package],
    backend: Backend,
    layers: LayerStore,
    out: Path,
    progress: Progress | None = None,
    *,
    report: BuildReport | None = None,
    cache: Path | None = None,
    propose: Propose | None = None,
    reworder: Reworder | None = None,
    against: Sequence[Task] = (),
) -> list[Task]:
    """Build tasks from the ``chosen`` packages, one directory each below ``out``, and return them sorted by name.

    ``propose`` yields the candidates (None: rules over the covered functions). Training tasks that are nearly the same
    as a held-out task (of this build, in ``out`` or in ``against``) are dropped. Tasks and rejections that are recorded
    in ``out`` are not tried again. ``report`` is filled in and written to ``out/yield.json``. A package that cannot be
    used is reported and left out. Raises PackageError if no package at all can be used (for example without network and
    cache).
    """
    report = report if report is not None else BuildReport()
    start = perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    clear_staging(out)
    report.packages = [PackageYield(package.name) for package in chosen]
    each = settings.tasks_per_package

    def say(line: PackageYield) -> None:
        if progress:
            done = sum(each if p.finished else p.kept for p in report.packages)
            progress(done, each * len(chosen), f"{line.package}: {line.error or f'{line.kept} of {line.tried} kept'}")

    boxes, writer = asyncio.Semaphore(settings.parallel), Writer(settings, reworder)
    shared = Shared(
        settings=settings,
        catalogue=catalogue,
        backend=backend,
        layers=layers,
        out=out,
        cache=cache,
        boxes=boxes,
        say=say,
        writer=writer,
        propose=propose,
    )

    async def one(package: Package, line: PackageYield) -> list[Task]:
        begun = perf_counter()
        try:
            tasks = await _package(shared, package, line)
        except PackageError as error:
            line.error, tasks = str(error), []
        line.seconds, line.finished = perf_counter() - begun, True
        say(line)
        return tasks

    done = await asyncio.gather(*map(one, chosen, report.packages))
    tasks = separated(
        tasks=[task for made in done for task in made], report=report, ledgers=shared.ledgers, out=out, against=against
    )
    report.seconds = perf_counter() - start
    if all(line.error for line in report.packages):
        raise PackageError("\n".join(line.error for line in report.packages) or "no package was chosen")
    report.write(out / "yield.json")
    return sorted(tasks, key=lambda task: task.name)


async def _package(shared: Shared, package: Package, line: PackageYield) -> list[Task]:
    """The tasks of one package."""
    settings, tools = shared.settings, toolchain_of(package)
    _applicable(shared, package, tools)
    names, files = await asyncio.to_thread(_fetch, shared, package)
    paths = tuple(shared.layers.path(name) for name in names)
    async with shared.boxes:
        suite = await tools.prepare(
            package, shared.catalogue, files, shared.backend, paths, cache=shared.cache, seconds=settings.suite_seconds
        )
    line.tests, line.functions = len(suite.tests), len(suite.functions)
    ledger = Ledger(shared.out / f".{package.name}.jsonl", _fingerprint(settings, package))
    shared.ledgers[package.name] = ledger
    workspace = tools.workspace(package, files)
    furnished = shared.catalogue.furnished(package)
    splits = kept_splits(shared.out / f".{package.name}-splits.json", settings, suite, package.sha256)
    trial = tools.trial(
        settings, furnished, suite, workspace, shared.backend, shared.layers, names, shared.writer, splits
    )
    try:
        work = PackageWork(shared=shared, trial=trial, tools=tools, ledger=ledger, line=line)
        await work.kinds()
        if settings.exploits and work.slugs:
            async with shared.boxes:
                await work.attack()
        return work.tasks
    finally:
        await trial.close()


def separated(
    tasks: list[Task],
    report: BuildReport,
    ledgers: dict[str, Ledger],
    out: Path,
    against: Sequence[Task] = (),
    source: str = "",
) -> list[Task]:
    """Return ``tasks`` without training tasks that nearly repeat a held-out one; delete those from disk.

    Held-out tasks are those of ``tasks``, of ``out`` and of ``against``. ``source``: name of the report line and ledger
    of all tasks, if it is not the name of their package.
    """
    twins = twins_of_heldout([*tasks, *heldout_beside(out, tasks), *against])
    lines = {line.package: line for line in report.packages}
    for task in tasks:
        if task.path in twins:
            name = source or task.info.provenance["package"]
            drop(task, TWIN, lines[name], ledgers[name])
    return [task for task in tasks if task.path not in twins]


def toolchain_of(package: Package) -> Toolchain:
    """The toolchain for the language of a package."""
    if package.language == "node":
        from .node_toolchain import NODE  # imports tree-sitter, which is an extra

        return NODE
    return PYTHON


def _applicable(shared: Shared, package: Package, tools: Toolchain) -> None:
    if shared.propose is not None:
        return
    if not set(shared.settings.kinds) & (tools.kinds - {"combine"}):
        asked, known = ", ".join(shared.settings.kinds), ", ".join(sorted(tools.kinds))
        raise PackageError(f"{package.name}: {asked} cannot be made of {package.language} code; add one of {known}")


def _fetch(shared: Shared, package: Package) -> tuple[tuple[str, ...], dict[str, bytes]]:
    source = fetch_package(package, shared.out, cache=shared.cache)
    layers = toolchain_of(package).layers
    return layers(shared.catalogue, package, shared.layers, cache=shared.cache), read_sdist(source)


def _fingerprint(settings: PackageTaskSettings, package: Package) -> str:
    """Everything that the verdict on a candidate depends on, apart from the candidate itself."""
    limits = (settings.max_tests, settings.guard_seconds, settings.test_timeout_sec, settings.min_mutation_score)
    replay: list[str] = []  # empty by default, so that ledgers of earlier builds stay valid
    if settings.replay.history != "every":
        replay.append(settings.replay.history)
    if not settings.replay.show_tests:
        replay.append("hidden")
    return ":".join(map(str, (GATES, package.sha256[:12], *limits, settings.mutants, *replay)))
