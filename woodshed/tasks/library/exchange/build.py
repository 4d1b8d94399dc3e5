"""``woodshed tasks import FILE --repositories FOLDER``: build tasks from instances of datasets, through every gate."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.build import Progress, separated
from woodshed.tasks.generators.packages.cost import Cost
from woodshed.tasks.generators.packages.proof import GATES
from woodshed.tasks.generators.packages.report import BuildReport, Ledger, PackageYield
from woodshed.tasks.generators.packages.stream import Verdict, clear_staging
from woodshed.tasks.generators.packages.toolchain import PYTHON
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.generators.packages.work import PackageWork, Shared
from woodshed.tasks.generators.prompts.write import Writer
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.prepare import Suite
from woodshed.tasks.pipeline.lock import SourceLock
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.claim import claim
from woodshed.tasks.sources.project import UNKNOWN

from .instances import Instance, read_instances
from .needs import Needs
from .trials import InstanceTrials


def find_repository(folder: Path, instance: Instance) -> Path | None:
    """The repository of an instance, bare or not; None if it is in none of ``places``."""
    return next((place for place in places(folder, instance) if _is_repository(place)), None)


def places(folder: Path, instance: Instance) -> list[Path]:
    """Paths where the repository of an instance may be, in the order in which they are tried."""
    owner, name = instance.owner, instance.name
    stems = [f"{owner}__{name}", f"{owner}/{name}", name]
    return [folder / f"{stem}{end}" for stem in stems for end in (".git", "")]


def looked_for(folder: Path, instance: Instance) -> str:
    """Error text with the paths that were tried."""
    names = ", ".join(place.relative_to(folder).as_posix() for place in places(folder, instance))
    return f"{folder} has none of {names}; clone {instance.owner}/{instance.name} there"


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


NOT_THERE = "its repository is not there"


async def build_from_instances(
    file: Path,
    repositories: Path,
    settings: PackageTaskSettings,
    backend: Backend,
    layers: LayerStore,
    out: Path,
    progress: Progress | None = None,
    *,
    wishes: Wishes | None = None,
    report: BuildReport | None = None,
    only: Collection[str] = (),
    cache: Path | None = None,
) -> tuple[list[Task], dict[str, str]]:
    """Build tasks of the instances in ``file``, or ``only`` of some; return (tasks by name, instance -> why none).

    Verdicts are recorded, so the same call continues after a kill. Dependencies are locked in ``out/sources.toml``.
    ``report`` has a line for each repository, with the reasons of its instances up to the first colon. Raises TaskError
    if the file cannot be read or no repository is found, PackageError if ``out`` or the index cannot be used.
    """
    report = report if report is not None else BuildReport()
    start, wishes = perf_counter(), wishes or Wishes()
    by_package: dict[str, list[Instance]] = defaultdict(list)
    for instance in await asyncio.to_thread(read_instances, file, only):
        by_package[instance.package].append(instance)
    found = {name: find_repository(repositories, own[0]) for name, own in by_package.items()}
    if not any(found.values()):
        first = next(iter(by_package.values()))[0]
        raise TaskError(f"{first.where}: {first.id}: {NOT_THERE}: {looked_for(repositories, first)}")
    with claim(out):
        cost, lock = Cost(out), SourceLock(out, settings)
        lock.write()  # marks the folder as that of a build before it has a task
        clear_staging(out)
        report.packages = [PackageYield(name, functions=len(own)) for name, own in by_package.items()]

        def say(line: PackageYield) -> None:
            cost.note()
            if progress:
                done, total = (sum(getattr(p, key) for p in report.packages) for key in ("tried", "functions"))
                progress(done, total, f"{line.package}: {line.kept} of {line.tried} kept")

        boxes = asyncio.Semaphore(settings.parallel)
        shared = Shared(
            settings=settings,
            catalogue=lock.catalogue,
            backend=backend,
            layers=layers,
            out=out,
            cache=cache,
            boxes=boxes,
            say=say,
            writer=Writer(settings),
        )
        needs, left_out, tasks = Needs(lock, layers, cache), dict[str, str](), list[Task]()
        for line, (name, own) in zip(report.packages, by_package.items(), strict=True):
            begun, place = perf_counter(), found[name]
            if place is None:
                _absent(line, own, f"{NOT_THERE}: {looked_for(repositories, own[0])}", left_out)
            else:
                tasks += await _of_one(
                    shared=shared, needs=needs, wishes=wishes, line=line, own=own, place=place, left_out=left_out
                )
            line.seconds, line.finished = perf_counter() - begun, True
        tasks = _apart(tasks, report, shared, left_out)
        notes = [f"{wanted} was left out: {why}" for wanted, why in needs.left_out.items()]
        report.packages[0].notes += notes
        report.seconds = perf_counter() - start
        report.tasks, report.core_seconds = len(list(out.glob("*/task.toml"))), cost.note()
        report.write(out / "yield.json")
        return sorted(tasks, key=lambda task: task.name), left_out


async def _of_one(
    shared: Shared,
    needs: Needs,
    wishes: Wishes,
    line: PackageYield,
    own: Sequence[Instance],
    place: Path,
    left_out: dict[str, str],
) -> list[Task]:
    """The tasks of one repository."""
    ledger = Ledger(shared.out / f".{line.package}.jsonl", _fingerprint(shared.settings, wishes))
    shared.ledgers[line.package] = ledger
    package = Package(name=line.package, version="", file="", sha256="", licence=UNKNOWN, sources=(), tests=())
    like = Trial(
        settings=shared.settings,
        package=package,
        suite=Suite(package=line.package, tests={}, functions=(), unstable={}, seconds=0.0),
        workspace={},
        backend=shared.backend,
        layers=shared.layers,
        layer_names=(),
        writer=shared.writer,
    )
    trials = InstanceTrials(place=place, out=shared.out, like=like, needs=needs, wishes=wishes, notes=line.notes)
    work = _Work(shared=shared, trial=like, tools=PYTHON, ledger=ledger, line=line)
    work.ids, work.left_out = {i.slug: i.id for i in own}, left_out
    await work.judge(trials.attempts(own), len(own))
    if shared.settings.exploits and work.slugs:
        kept = {task.path.name for task in work.tasks}
        async with shared.boxes:
            await work.attack()
        for slug in kept - {task.path.name for task in work.tasks}:
            left_out[work.ids[slug]] = ledger.verdicts[slug] or ""
    return work.tasks


class _Work(PackageWork):
    """Counts reasons up to the first colon, and keeps the whole reason of each instance in ``left_out``."""

    ids: dict[str, str]
    left_out: dict[str, str]

    def count(self, verdict: Verdict) -> None:
        if verdict.why:
            self.left_out[self.ids[verdict.slug]] = verdict.why
            verdict = replace(verdict, why=verdict.why.partition(": ")[0])
        super().count(verdict)


def _absent(line: PackageYield, own: Sequence[Instance], why: str, left_out: dict[str, str]) -> None:
    """Count the instances of a missing repository. Not recorded in a ledger: it may be there the next time."""
    for instance in own:
        line.tried += 1
        line.count(instance.format, False)
        line.rejected[NOT_THERE] += 1
        left_out[instance.id] = why


def _apart(tasks: list[Task], report: BuildReport, shared: Shared, left_out: dict[str, str]) -> list[Task]:
    """``tasks`` without training tasks that nearly repeat a held-out one of these or of others in the folder."""
    kept = separated(tasks, report, shared.ledgers, shared.out)
    for task in tasks:
        if task not in kept:
            package, slug = task.info.provenance["package"], task.path.name
            left_out[task.info.provenance["instance"]] = shared.ledgers[package].verdicts[slug] or ""
    return kept


def _fingerprint(settings: PackageTaskSettings, wishes: Wishes) -> str:
    """Everything that the verdict on an instance depends on, apart from the instance itself."""
    limits = (settings.test_timeout_sec, settings.suite_seconds)
    asked = repr((GATES, *limits, settings.mutants, settings.min_mutation_score, wishes))
    return hashlib.sha256(asked.encode()).hexdigest()[:12]
