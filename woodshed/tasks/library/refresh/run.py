"""``woodshed tasks refresh``: decide by ratings, harden easy tasks, check unsolved ones, retire.

Every decision and every task is on disk before the next step, so the same command continues after a kill.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.history import read_history
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.find import task_folders
from woodshed.tasks.generators.packages.build import Progress, build_tasks
from woodshed.tasks.generators.packages.cost import Cost, rate
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.packages.catalogue import Catalogue, Package, Wheel
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import KEPT_SOURCES
from woodshed.tasks.pipeline.lock import SourceLock
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.claim import SOURCES, claim
from woodshed.tasks.validate.check import check_folders
from woodshed.tasks.validate.splits import HELDOUT

from .decide import Limits, find, left_open, release, retire, settle_unsolved
from .harder import WAYS, Hardener, Way

_MEANING = {
    "unrated": "no rollouts yet",
    "undecided": "too few rollouts to say",
    "teaches": "stay as they are",
    "too easy": "retired",
    "unsolved": "checked again, quarantined or broken",
    "retired": "before",
    "quarantined": "before",
    "broken": "before",
}


@dataclass
class Refresh:
    """Result of a refresh. ``found``: training task -> finding, or the status that it had before. ``hardened``: easy
    task -> names of the tasks in ``out`` that replace it. ``broken``: unsolved task -> the gates that it fails.
    ``released``: quarantined tasks that have been solved since. ``kept``: number of tasks in ``out``; ``core_seconds``:
    their cost in all. ``build``: report of the harder forms."""

    out: Path
    found: dict[str, str] = field(default_factory=dict)
    hardened: dict[str, list[str]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    build: BuildReport | None = None
    kept: int = 0
    core_seconds: float = 0.0

    def text(self) -> str:
        """The report as text: counts, harder forms, broken tasks, notes, cost."""
        counts = Counter(self.found.values())
        lines = [f"{'training tasks':16} {len(self.found):6}"]
        lines += [f"  {what:14} {counts[what]:6}  {means}" for what, means in _MEANING.items() if counts[what]]
        if self.released:
            lines.append(f"  {'released':14} {len(self.released):6}  were quarantined; somebody has solved them since")
        if self.build is not None and self.build.packages:
            lines += ["", "harder forms:", self.build.table()]
        for name, made in sorted(self.hardened.items()):
            lines.append(f"hardened: {name} -> {', '.join(made) or 'nothing that passes the gates'}")
        lines += [f"broken: {name}: {why}" for name, why in sorted(self.broken.items())]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, rate(self.kept, self.core_seconds)])

    def as_json(self) -> dict[str, Any]:
        build = [p.counts() for p in self.build.packages] if self.build is not None else []
        return {
            "out": str(self.out),
            "found": self.found,
            "hardened": self.hardened,
            "broken": self.broken,
            "released": self.released,
            "notes": self.notes,
            "build": build,
            "tasks": self.kept,
            "core_seconds": round(self.core_seconds, 2),
            "tasks_per_core_hour": round(3600 * self.kept / self.core_seconds, 1) if self.core_seconds else None,
        }


@dataclass(frozen=True)
class Wishes:
    """Options of a refresh. ``parallel``: boxes at the same time."""

    limits: Limits
    ways: Collection[Way] = WAYS
    parallel: int = 2


async def refresh(
    folder: Path,
    out: Path,
    wishes: Wishes,
    backend: Backend,
    layers: LayerStore,
    progress: Progress | None = None,
    *,
    cache: Path | None = None,
) -> Refresh:
    """Refresh the training tasks in ``folder`` by their ratings; harder tasks are made in ``out``.

    Raises TaskError or PackageError if there are no tasks or no ratings, if ``out`` cannot be used, or if no package
    can be prepared. Tasks for which no harder form could be tried stay in use.
    """
    if out.resolve() == folder.resolve():
        raise PackageError(f"--out {out} is the folder of the tasks themselves: give another, such as {folder}/harder")
    say: Progress = progress or (lambda *_: None)
    everything = [Task.load(path) for path in task_folders([folder])]
    tasks = [task for task in everything if task.info.split == "train"]
    if not any(read_history(task).ratings for task in tasks):
        raise TaskError(
            f"{folder}: none of its {len(tasks)} training tasks has a rating in its present form; rate them with "
            f"`woodshed tasks rate {folder} --policy POLICY` or `--from RUN`"
        )
    with claim(out):
        cost, refreshed = Cost(out), Refresh(out)
        opened = left_open(tasks, _made(out))
        refreshed.released = [task.name for task in tasks if release(task)]
        easy = _sorted_out(tasks, wishes.limits, refreshed, opened)
        unsolved = [task for task in tasks if refreshed.found.get(task.name) == "unsolved"]
        if unsolved:
            await _check(unsolved=unsolved, wishes=wishes, backend=backend, layers=layers, say=say, refreshed=refreshed)
        if easy:
            left = list({task.path: task for made in opened.values() for task in made}.values())
            await _harden(
                folder=folder,
                out=out,
                everything=everything,
                easy=easy,
                left=left,
                wishes=wishes,
                backend=backend,
                layers=layers,
                say=say,
                refreshed=refreshed,
                cost=cost,
                cache=cache,
            )
        untried = {line.package for line in refreshed.build.packages if line.error} if refreshed.build else set()
        for task in (t for t in easy if t.info.provenance.get("package") not in untried):
            retire(task, wishes.limits, sorted(refreshed.hardened.get(task.name, ())))
        refreshed.kept = len(_made(out))
        refreshed.core_seconds = cost.note()
    return refreshed


def _sorted_out(tasks: Sequence[Task], limits: Limits, refreshed: Refresh, opened: Collection[str]) -> list[Task]:
    """Record the finding of each task in ``refreshed`` and return the easy ones, including those ``opened``, which an
    earlier start found too easy."""
    easy = []
    for task in tasks:
        history = read_history(task)
        finding = "too easy" if task.name in opened else find(history, limits)[0]
        if history.status != "in use":
            refreshed.found[task.name] = history.status
            continue
        refreshed.found[task.name] = finding
        if finding == "too easy":
            easy.append(task)
    return easy


async def _check(
    unsolved: Sequence[Task], wishes: Wishes, backend: Backend, layers: LayerStore, say: Progress, refreshed: Refresh
) -> None:
    """Run all gates again on tasks that nobody solves."""
    paths = [task.path for task in unsolved]
    verdicts = await check_folders(paths, backend, layers, parallel=wishes.parallel, progress=say)
    for task, verdict in zip(unsolved, verdicts, strict=True):
        if settle_unsolved(task, wishes.limits, verdict) == "broken":
            refreshed.broken[task.name] = "; ".join(f"{k}: {why}" for k, why in verdict.failures.items())


async def _harden(
    folder: Path,
    out: Path,
    everything: Sequence[Task],
    easy: Sequence[Task],
    left: Sequence[Task],
    wishes: Wishes,
    backend: Backend,
    layers: LayerStore,
    say: Progress,
    refreshed: Refresh,
    cost: Cost,
    cache: Path | None,
) -> None:
    """Build harder forms of the ``easy`` tasks from the sources that ``folder`` is locked to; those ``left`` by an
    earlier start go through the last gates with them."""
    if not (folder / SOURCES).exists():
        refreshed.notes.append(
            f"nothing was hardened: {folder} has no {SOURCES}, so `woodshed tasks build` did not make it"
        )
        return
    settings = _settings(folder, len(easy) + len(left), wishes)
    names = {task.info.provenance.get("package", "") for task in easy}
    chosen, catalogue = _locked(folder=folder, out=out, settings=settings, names=names, refreshed=refreshed)
    if not chosen:
        return
    made_here = out.resolve()
    known = {t.path.name: t for t in everything if t.path.parent.resolve() != made_here or t in easy}
    hardener = Hardener(easy, known, wishes.ways, left)
    refreshed.build = BuildReport()

    def told(done: int, total: int, note: str) -> None:
        cost.note()
        say(done, total, note)

    heldout = [task for task in everything if task.info.split == HELDOUT]
    tasks = await build_tasks(
        settings=settings,
        catalogue=catalogue,
        chosen=chosen,
        backend=backend,
        layers=layers,
        out=out,
        progress=told,
        report=refreshed.build,
        cache=cache,
        propose=hardener,
        against=heldout,
    )
    untried = [line.package for line in refreshed.build.packages if line.error]
    refreshed.notes += [f"the tasks of {name} stay in use: no harder form could be tried" for name in untried]
    there = {task.name for task in tasks}  # without tasks that were dropped after they were kept
    refreshed.hardened = {name: [m for m in made if m in there] for name, made in hardener.made.items()}


def _settings(folder: Path, most: int, wishes: Wishes) -> PackageTaskSettings:
    """The settings that the folder was built with, for more than ``most`` tasks, so that every proposal is tried."""
    try:
        stated = tomllib.loads((folder / SOURCES).read_text("utf-8")).get("settings", {})
        values = {key: value for key, value in stated.items() if key in PackageTaskSettings.model_fields}
        return PackageTaskSettings.model_validate(
            {**values, "catalogue": str(folder / SOURCES), "tasks_per_package": most + 1, "attempts": 2 * len(WAYS)}
            | {"parallel": wishes.parallel}
        )
    except (OSError, ValueError) as error:
        raise PackageError(f"{folder / SOURCES}: {error}") from None


def _locked(
    folder: Path, out: Path, settings: PackageTaskSettings, names: Collection[str], refreshed: Refresh
) -> tuple[list[Package], Catalogue]:
    """The packages of these names as ``folder`` locks them, locked in ``out`` too, with copies of kept archives."""
    theirs, ours = SourceLock(folder, settings), SourceLock(out, settings)
    chosen = [theirs.catalogue.packages[name] for name in sorted(names) if name in theirs.catalogue.packages]
    for package in chosen:
        have = ours.catalogue.packages.get(package.name)
        if have not in (None, package):
            raise PackageError(f"{out} is locked to another {package.name}: choose another folder with --out")
        if have is None:
            groups: dict[str, Sequence[Wheel]] = {g: theirs.catalogue.wheels[g] for g in package.needs}
            ours.add(package, groups, theirs.catalogue.modules.get(package.name, ()))
        for file in (package.file if package.kept else "", package.history):
            source, target = folder / KEPT_SOURCES / file, out / KEPT_SOURCES / file
            if not file or target.exists():
                continue
            try:
                write_whole(target, source.read_bytes())
            except FileNotFoundError:
                raise PackageError(f"{source} is missing: the tasks of {package.name} are made from it") from None
    if left := sorted(set(names) - {package.name for package in chosen}):
        what = ", ".join(name or "tasks of no package" for name in left)
        refreshed.notes.append(f"not hardened: {what}: not locked in {folder / SOURCES}")
    return chosen, ours.catalogue


def _made(out: Path) -> list[Task]:
    return [Task.load(path.parent) for path in sorted(out.glob("*/task.toml")) if not path.parent.name.startswith(".")]
