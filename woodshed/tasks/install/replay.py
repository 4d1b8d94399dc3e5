"""A recipe replayed from scratch: run in a fresh initial state, what it left behind collected, its targets tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.grading.install.box import SETUP, SETUP_SECONDS, TARGET_SECONDS, installed_in, shell
from woodshed.grading.install.changes import changes
from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import Judge, Reached, reached
from woodshed.sandbox.protocol import BoxSpec, Sandbox
from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.sources.requirements import canonical
from woodshed.tasks.sources.resolve import import_names

from .depot import Depot
from .space import START, Boxes, Ground

START_SECONDS = 60.0


@dataclass(frozen=True)
class Recipe:
    """Shell scripts, run in the root of the repository: ``setup`` once, ``start`` at the beginning of every use."""

    setup: str
    start: str = ""

    def files(self) -> dict[str, bytes]:
        start = {START: self.start.encode()} if self.start else {}
        return {SETUP: self.setup.encode(), **start}


@dataclass(frozen=True)
class Replay:
    """What came of it. ``problems``: why the recipe is not acceptable whatever its targets say.

    ``served``: every wheel that was fetched; ``installed``: those that are still there at the end. ``added``: files
    that were not in the repository.
    """

    output: str
    problems: tuple[str, ...]
    reached: tuple[Reached, ...]
    served: tuple[Wheel, ...] = ()
    installed: tuple[Wheel, ...] = ()
    added: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        return not self.problems and all(r.ok for r in self.reached)

    def text(self) -> str:
        """What went wrong and what was said, for whoever writes the next recipe."""
        lines = [f"problem: {p}" for p in self.problems]
        for one in self.reached:
            lines.append(f"$ {one.goal.command}\n{'reached' if one.ok else 'NOT reached: ' + one.why}")
            lines += [] if one.ok else [one.output.strip()]
        return "\n".join([*lines, "output of setup.sh:", self.output.strip()[-3000:]])


async def replay(
    ground: Ground, recipe: Recipe, targets: Sequence[Goal], boxes: Boxes, *, only: Sequence[Wheel] | None = None,
    judge: Judge | None = None,
) -> Replay:  # fmt: skip
    """Run ``recipe`` in a fresh box and try ``targets``; with ``only`` the depot serves those files and no other."""
    with Depot(without=ground.names, only=only, cache=ground.cache) as depot:
        box = await boxes.build(ground, depot.port, recipe.files())
        try:
            done = await shell(box, f"sh -e {SETUP}", timeout=SETUP_SECONDS)
            problems = []
            if done.timed_out or done.returncode:
                how = "did not end in time" if done.timed_out else f"ended with {done.returncode}"
                problems.append(f"setup.sh {how}")
            left, listed = await box.get(["**/*"], max_bytes=512 << 20), await installed_in(box)
            installed, unknown = _locked(listed, depot.served.values(), ground)
            taken = import_names((*ground.base, *installed), cache=ground.cache)
            added, wrong = changes(ground.files, left, ground.package.path, taken)
            problems += [*unknown, *wrong]
            found = () if done.returncode else await try_targets(box, recipe, targets, boxes, judge)
        except OSError as error:
            return Replay("", (f"the workspace cannot be read back: {error}",), ())
        finally:
            await box.close()
        output = done.stdout.decode("utf-8", "replace")
        served = tuple(sorted(depot.served.values(), key=lambda w: w.file))
        output += "".join(f"index: {problem}\n" for problem in depot.problems)
        return Replay(output, tuple(problems), found, served, installed, added)


async def try_targets(
    box: Sandbox, recipe: Recipe, targets: Sequence[Goal], boxes: Boxes, judge: Judge | None = None
) -> tuple[Reached, ...]:
    """Start what has to run, then each target in turn, all in the same box."""
    clean = await boxes.backend.create(BoxSpec())
    try:
        if recipe.start:
            await shell(box, f"sh {START} >/tmp/start.log 2>&1 </dev/null", timeout=START_SECONDS)
        found = []
        for goal in targets:
            done = await shell(box, goal.command, timeout=TARGET_SECONDS)
            found.append(await reached(goal, done, clean, judge))
        return tuple(found)
    finally:
        await clean.close()


def _locked(listed: Sequence[str], served: Iterable[Wheel], ground: Ground) -> tuple[tuple[Wheel, ...], list[str]]:
    known = {(canonical(w.name), w.version): w for w in served}
    own = set(map(canonical, ground.names))
    wheels, problems = [], []
    for text in listed:
        name, _, version = text.rpartition("-")
        wheel = known.get((canonical(name), version))
        if wheel is not None:
            wheels.append(wheel)
        elif canonical(name) not in own:  # the project's own copy is left behind
            problems.append(
                f"{name} {version} is installed and was not fetched as a wheel from the index, so that nobody can lock "
                "it: write what you mock as files of the workspace"
            )
    return tuple(sorted(wheels, key=lambda w: canonical(w.name))), problems
