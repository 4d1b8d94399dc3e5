"""``woodshed tasks build``: sources in, validated task directories out, by ``generators/packages/build.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.build import Progress, build_tasks, separated
from woodshed.tasks.generators.packages.cost import Cost
from woodshed.tasks.generators.packages.proof import GATES
from woodshed.tasks.generators.packages.report import BuildReport, Ledger, PackageYield, Rejected
from woodshed.tasks.generators.packages.stream import STAGING, Attempt, Stream, clear_staging
from woodshed.tasks.generators.packages.work import Propose
from woodshed.tasks.generators.prompts.reword import Reworder
from woodshed.tasks.generators.prompts.write import Writer
from woodshed.tasks.packages.catalogue import Catalogue, Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.claim import SOURCES, claim
from woodshed.tasks.sources.custom import draw_tasks, is_source_reference, load_source
from woodshed.tasks.sources.spec import SourceSpec, distinct_names, parse_source, source_name
from woodshed.tasks.validate.gates import check_task

from .asked import check_held_out, held_out, same_wishes
from .lock import SourceLock
from .pin import Pinned, Pinner, Wishes


@dataclass(frozen=True)
class BuildContext:
    """Objects that all sources of a build share; ``boxes`` limits how many boxes work at once."""

    settings: PackageTaskSettings
    catalogue: Catalogue
    backend: Backend
    layers: LayerStore
    out: Path
    boxes: asyncio.Semaphore
    writer: Writer
    ledgers: dict[str, Ledger]
    progress: Progress
    cache: Path | None


class BuildCollection(Protocol):
    """Builds tasks from one source, such as a local copy of a benchmark, written ``NAME:PATH``.

    Adds its ledger to ``context.ledgers`` if its tasks can be near-duplicates of others. Raises PackageError if the
    source cannot be used.
    """

    async def __call__(self, source: str, context: BuildContext) -> tuple[list[Task], PackageYield]: ...


async def build_from_sources(
    sources: Sequence[str],
    settings: PackageTaskSettings,
    backend: Backend,
    layers: LayerStore,
    out: Path,
    progress: Progress | None = None,
    *,
    wishes: Wishes | None = None,
    collections: Mapping[str, BuildCollection] | None = None,
    report: BuildReport | None = None,
    cache: Path | None = None,
    propose: Propose | None = None,
    reworder: Reworder | None = None,
) -> list[Task]:
    """Build tasks from ``sources`` (see ``parse_source``) under ``out``, and return them sorted by name.

    ``collections`` are benchmarks by name; sources written ``NAME:PATH`` with one of these names, and sources of the
    user's own (``"module:function"``), come first and are read again each time. Sources that ``out/sources.toml`` holds
    are taken from there; others are pinned first. After a kill at any moment, the same call continues and ends with the
    same folder. A source that cannot be used is reported and left out. Raises PackageError if no source can be used, a
    source is malformed, an option would have no effect, or ``out`` cannot be used. ``reworder`` has a policy reword the
    instructions.
    """
    report = report if report is not None else BuildReport()
    collected: dict[str, tuple[str, BuildCollection]] = {}
    for text in sources:
        prefix = text.partition(":")[0]
        if collections and prefix in collections:
            collected[text] = prefix, collections[prefix]
        elif is_source_reference(text):
            collected[text] = source_name(text), build_custom
    specs = list(dict.fromkeys(parse_source(text) for text in sources if text not in collected))
    settings = held_out(settings)
    with claim(out):
        cost, lock = Cost(out), SourceLock(out, settings)
        new = [spec for spec in specs if lock.find(spec) is None]
        names = dict(zip(new, distinct_names(new, lock.catalogue.packages)))
        check_held_out(settings, {*lock.catalogue.packages, *names.values(), *(name for name, _ in collected.values())})
        if reworder is not None and settings.level != "precise":
            reworder.claim()

        def told(done: int, total: int, note: str) -> None:
            cost.note()
            if progress:
                progress(done, total, note)

        boxes = asyncio.Semaphore(settings.parallel)
        base, history = lock.catalogue.wheels["pytest"], "replay" in settings.kinds
        pinner = Pinner(
            out=out,
            base=base,
            backend=backend,
            layers=layers,
            boxes=boxes,
            wishes=wishes or Wishes(),
            cache=cache,
            history=history,
            suite_seconds=settings.suite_seconds,
        )
        writer, ledgers = Writer(settings, reworder), dict[str, Ledger]()
        read, tasks = list[tuple[list[Task], PackageYield]](), list[Task]()
        if collected:
            clear_staging(out)
            lock.write()  # marks the folder as that of a build before it has a task
        context = BuildContext(
            settings=settings,
            catalogue=lock.catalogue,
            backend=backend,
            layers=layers,
            out=out,
            boxes=boxes,
            writer=writer,
            ledgers=ledgers,
            progress=told,
            cache=cache,
        )
        for text, (name, builder) in collected.items():
            try:
                read.append(await builder(text, context))
            except PackageError as error:
                read.append(([], PackageYield(name, error=str(error), finished=True)))
        chosen, failed = await _pinned(specs=specs, names=names, lock=lock, pinner=pinner, progress=told)
        if chosen:
            with suppress(PackageError):  # none of them can be used; each line of the report says why
                tasks = await build_tasks(
                    settings=settings,
                    catalogue=lock.catalogue,
                    chosen=[p.package for p in chosen],
                    backend=backend,
                    layers=layers,
                    out=out,
                    progress=told,
                    report=report,
                    cache=cache,
                    propose=propose,
                    reworder=reworder,
                )
        for made, line in read:
            tasks += separated(made, BuildReport([line]), ledgers, out, source=line.package)
        notes = {p.package.name: list(p.notes) for p in chosen}
        for line in report.packages:
            line.notes = notes.get(line.package, [])
        report.packages = [*(line for _, line in read), *report.packages, *failed]
        if all(line.error for line in report.packages):
            raise PackageError("\n".join(line.error for line in report.packages) or "no source was given")
        _finish(report, cost, out)
        return sorted(tasks, key=lambda task: task.name)


async def build_custom(source: str, context: BuildContext) -> tuple[list[Task], PackageYield]:
    """Build tasks from a source of the user's own, ``"module:function"``, each through every gate; resumable.

    Asks for ``tasks_per_package`` tasks, a ``heldout_share`` of them held out. A task that fails a gate is left out.
    """
    settings, start, name = context.settings, perf_counter(), source_name(source)
    heldout = round(settings.tasks_per_package * (1 if name in settings.heldout_packages else settings.heldout_share))
    drafts = context.out / f"{STAGING}{name}"
    written: list[Task] = []
    try:
        load_source(source)
        for split, count in (("train", settings.tasks_per_package - heldout), ("heldout", heldout)):
            if count:
                drawn = draw_tasks(source, drafts / split, split=split, count=count, seed=settings.seed)
                written += await asyncio.to_thread(list, drawn)
    except (TaskError, ValueError) as error:
        raise PackageError(str(error)) from error

    async def gated(draft: Task, place: Path) -> Task:
        report = await check_task(draft, context.backend, context.layers)
        if report.failures:
            raise Rejected("; ".join(f"{draft.path.name}: {gate}: {why}" for gate, why in report.failures.items()))
        draft.path.rename(place)
        return Task.load(place)

    line, made = PackageYield(name), list[Task]()
    ledger = context.ledgers[name] = Ledger(context.out / f".{name}.jsonl", str(GATES))
    stream = Stream(ledger, context.out, context.boxes, settings.parallel)
    attempts = (
        Attempt(f"{name}-{draft.path.name}-{draft.digest[:8]}", draft.info.kind, partial(gated, draft))
        for draft in written
    )
    async with aclosing(stream.judged(attempts)) as verdicts:
        async for verdict in verdicts:
            line.tried += 1
            line.count(verdict.kind, verdict.task is not None)
            if verdict.task is None:
                line.rejected[verdict.why] += 1
            else:
                made.append(verdict.task)
            context.progress(line.tried, len(written), f"{verdict.slug}: {verdict.why or 'kept'}")
    clear_staging(context.out)
    line.kept, line.seconds, line.finished = len(made), perf_counter() - start, True
    return made, line


def _finish(report: BuildReport, cost: Cost, out: Path) -> None:
    report.tasks, report.core_seconds = len(list(out.glob("*/task.toml"))), cost.note()
    report.write(out / "yield.json")


async def _pinned(
    specs: Sequence[SourceSpec],
    names: Mapping[SourceSpec, str],
    lock: SourceLock,
    pinner: Pinner,
    progress: Progress | None,
) -> tuple[list[Pinned], list[PackageYield]]:
    """Return (pinned package of each spec, in order; report line of each unusable one). ``names``: of new specs."""

    async def one(spec: SourceSpec) -> Pinned | PackageYield:
        known = lock.find(spec)
        if known is not None:
            same_wishes(spec, known, lock.catalogue, pinner.wishes)
            return Pinned(known, notes=_age(spec, known))
        if pinner.wishes == Wishes() and names[spec] == spec.name and (vetted := lock.from_catalogue(spec)):
            return Pinned(vetted)
        if progress:
            progress(0, 0, f"{names[spec]}: reading it, running its tests twice")
        try:
            pinned = await pinner.pin(spec, names[spec])
        except PackageError as error:
            text = str(error) if names[spec] in str(error) else f"{names[spec]}: {error}"
            return PackageYield(names[spec], error=text, finished=True)
        package = replace(pinned.package, asked=pinner.wishes.needs)
        lock.add(package, pinned.groups, pinned.modules)
        return replace(pinned, package=package)

    done = await asyncio.gather(*map(one, specs))
    return [p for p in done if isinstance(p, Pinned)], [line for line in done if isinstance(line, PackageYield)]


def _age(spec: SourceSpec, known: Package) -> tuple[str, ...]:
    if spec.kind in ("pypi", "npm") or spec.version:
        return ()
    state = f"commit {known.commit[:12]}" if known.commit else "the files of an earlier build"
    return (f"made from {state}, as locked in {SOURCES}; use another --out for newer ones",)
