"""The two stages of an install: find goals for a repository, then find a recipe that reaches some of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import Judge, Reached
from woodshed.sandbox.services import try_services
from woodshed.tasks.install.node.kit import NodeKit
from woodshed.tasks.install.python.kit import PythonKit
from woodshed.tasks.languages.node.modules import described_node
from woodshed.tasks.languages.node.prepare import node_version
from woodshed.tasks.languages.node.project import NodeProject, is_node_project
from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.sources.layout import find_layout
from woodshed.tasks.sources.obtain import described, obtain, project_names
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.spec import SourceSpec

from .kit import SHARE, TRIES, draw
from .lock import Install
from .replay import Recipe, Replay, replay, try_targets
from .space import Boxes, Ground

Say = Callable[[str], None]


class Setter(Protocol):
    """Finds goals for a repository."""

    async def goals(self, ground: Ground) -> list[Goal]: ...


class Builder(Protocol):
    """Writes recipes. ``name``: as the lock records it."""

    @property
    def name(self) -> str: ...

    async def recipe(self, ground: Ground, targets: Sequence[Goal], last: Replay | None) -> Recipe | None:
        """The next recipe to try after ``last``; None if the builder has nothing better."""
        ...


class RuleSetter:
    """Finds goals by rules."""

    async def goals(self, ground: Ground) -> list[Goal]:
        return ground.kit.goals(ground)


@dataclass
class Outcome:
    """The result for one source. ``install`` is None if it failed, and ``error`` says why."""

    source: str
    targets: tuple[Goal, ...] = ()
    tries: int = 0
    install: Install | None = None
    error: str = ""
    last: tuple[Reached, ...] = field(default=())


def ground_of(
    spec: SourceSpec,
    name: str,
    base: tuple[Wheel, ...],
    out: Path,
    *,
    code: Sequence[str] = (),
    tests: Sequence[str] = (),
    roots: Sequence[str] = (),
    markers: str = "",
    cache: Path | None = None,
    passing_share: float = SHARE,
) -> Ground:
    """The initial state of a source. ``passing_share``: as in ``Ground``. ``code``, ``tests``, ``roots`` and
    ``markers``: as in ``find_layout``; the last two are for Python only.

    Raises PackageError as ``obtain`` and ``find_layout`` do.
    """
    package, files, _ = obtain(spec, name, out, cache=cache)
    if spec.kind == "npm" or is_node_project(files):
        node_version()
        node = NodeProject(files)
        package = described_node(package, node, code, tests)
        return Ground(
            package=package,
            files=files,
            names=(name, node.name or name),
            version=node.version,
            kit=NodeKit(),
            base=(),
            cache=cache,
            passing_share=passing_share,
        )
    project = Project(files)
    package = described(package, project, find_layout(project, sources=code, tests=tests, roots=roots, markers=markers))
    stated = [n for n in project_names(spec, project) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}", n)]
    names = tuple(dict.fromkeys([name, *stated]))
    version = spec.version if spec.kind == "pypi" else _stated_version(project)
    return Ground(
        package=package,
        files=files,
        names=names,
        version=version,
        kit=PythonKit(),
        base=base,
        cache=cache,
        passing_share=passing_share,
    )


async def install(
    ground: Ground,
    setter: Setter,
    builder: Builder,
    boxes: Boxes,
    *,
    seed: int = 0,
    say: Say | None = None,
    judge: Judge | None = None,
) -> Outcome:
    """Run both stages on one repository; at most ``TRIES`` recipes, each from the initial state."""
    said = say or (lambda _: None)
    name = ground.package.name
    ground, uncompiled = await ground.kit.compiled(ground, boxes)
    said(f"{name}: looking for goals")
    goals = await setter.goals(ground)
    targets = draw(goals, f"{seed}:{name}")
    outcome = Outcome(ground.package.origin, tuple(targets))
    last: Replay | None = None
    good: tuple[Recipe, Replay] | None = None
    while True:
        recipe = await builder.recipe(ground, targets, last) if outcome.tries < TRIES else None
        if recipe is not None:
            outcome.tries += 1
            said(f"{name}: try {outcome.tries} of {TRIES}")
            last = await replay(ground, recipe, targets, boxes, judge=judge)
            outcome.last = last.reached
            good = (recipe, last) if last.ok else good
            continue
        if good is None:
            outcome.error = "; ".join(filter(None, [_why(last), uncompiled]))
            return outcome
        said(f"{name}: replaying the recipe offline")
        last = await _proved(ground=ground, recipe=good[0], targets=targets, first=good[1], boxes=boxes, judge=judge)
        outcome.last = last.reached
        if not last.problems:
            break
        good = None
    recipe, found = good[0], last
    outcome.install = Install(
        origin=ground.package.origin,
        commit=ground.package.commit,
        source=ground.package.sha256,
        name=ground.names[-1],
        version=ground.version,
        builder=builder.name,
        tries=outcome.tries,
        recipe=recipe,
        goals=tuple(goals),
        targets=tuple(targets),
        served=found.served,
        installed=found.installed,
        plugins=await asyncio.to_thread(ground.kit.plugins, found.installed, ground.cache),
        added={**{file: ground.files[file] for file in ground.built}, **found.added},
        notes=(*_left_out(found, ground.kit.absent), *filter(None, [uncompiled])),
    )
    return outcome


async def _proved(
    ground: Ground, recipe: Recipe, targets: Sequence[Goal], first: Replay, boxes: Boxes, judge: Judge | None
) -> Replay:
    """``first``, with problems added if it fails offline with the fetched files, or in a box as tasks will have it."""
    again = await replay(ground, recipe, (), boxes, only=first.served)
    if not again.ok:
        return replace(
            again,
            problems=("it fails when replayed offline, from what it fetched before", *again.problems),
            reached=first.reached,
        )
    if again.installed != first.installed or again.added != first.added:
        return replace(first, problems=("two replays leave different packages or files behind",))
    if recipe.start and (why := await _needs_more(ground, recipe, first, boxes)):
        return replace(first, problems=(why,))
    given = {**first.added, **recipe.files()}
    box = await boxes.locked(ground, first.installed, given, services=bool(recipe.start))
    try:
        found = await try_targets(box=box, recipe=recipe, targets=targets, boxes=boxes, judge=judge)
    finally:
        await box.close()
    if not all(r.ok for r in found):
        why = "it relies on something that is not kept: only locked packages and files in the repository are"
        return replace(first, problems=(why,), reached=found)
    return replace(first, reached=found)


async def _needs_more(ground: Ground, recipe: Recipe, first: Replay, boxes: Boxes) -> str:
    """Return the reason why services do not start from locked packages alone, '' if they do. The code of a task is
    broken, so services must not need it."""
    box = await boxes.without_repository(ground, first.installed)
    try:
        why = await try_services(box, recipe.start)
    finally:
        await box.close()
    return why and f"without the repository, from locked packages alone, {why}"


def _why(last: Replay | None) -> str:
    if last is None:
        return "no recipe was written"
    failed = [f"`{r.goal.command}`: {r.why}" for r in last.reached if not r.ok]
    tail = last.output.strip().splitlines()[-1:] if last.problems else []
    return "; ".join([*last.problems, *failed, *tail]) or "no recipe could be verified"


def _left_out(found: Replay, why: str) -> tuple[str, ...]:
    lines = [line for line in found.output.splitlines() if line.startswith("left out: ")]
    return tuple(f"{line.removeprefix('left out: ')} was left out: {why}" for line in lines)


def _stated_version(project: Project) -> str:
    """The version that the project's files state, else ``0.0.0``."""
    stated = (
        project.table("project").get("version"),
        project.table("tool", "poetry").get("version"),
        project.section("setup.cfg", "metadata").get("version"),
        project.metadata.get("Version"),
    )
    for text in map(str, filter(None, stated)):
        if re.fullmatch(r"[0-9][A-Za-z0-9.+!_-]{0,60}", text):
            return text
    return "0.0.0"
