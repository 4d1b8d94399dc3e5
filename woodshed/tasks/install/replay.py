"""Replay a recipe: run it in a fresh box with the initial state, collect what it leaves behind, try its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.grading.install.changes import SETUP, SETUP_SECONDS, TARGET_SECONDS, shell
from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import Judge, Reached, reached
from woodshed.sandbox.protocol import BoxError, BoxSpec, Sandbox
from woodshed.sandbox.services import try_services

from .kit import Pinned, Served
from .space import START, Boxes, Ground


@dataclass(frozen=True)
class Recipe:
    """Shell scripts, run in the root of the repository. ``setup`` runs once; ``start`` runs at the beginning of every
    use, ends once the services that it starts answer, and needs no file of the repository."""

    setup: str
    start: str = ""

    def files(self) -> dict[str, bytes]:
        start = {START: self.start.encode()} if self.start else {}
        return {SETUP: self.setup.encode(), **start}


@dataclass(frozen=True)
class Replay:
    """Result of a replay. ``problems``: why the recipe is refused, whatever its targets give. ``reached``: result of
    each target. ``served``: every file that was fetched; ``installed``: packages that are there at the end; ``added``:
    files that were not in the repository.
    """

    output: str
    problems: tuple[str, ...]
    reached: tuple[Reached, ...]
    served: tuple[Served, ...] = ()
    installed: tuple[Pinned, ...] = ()
    added: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        return not self.problems and all(r.ok for r in self.reached)

    def text(self) -> str:
        """Problems, failed targets and outputs, as feedback for the next recipe."""
        lines = [f"problem: {p}" for p in self.problems]
        for one in self.reached:
            lines.append(f"$ {one.goal.command}\n{'reached' if one.ok else 'NOT reached: ' + one.why}")
            lines += [] if one.ok else [one.output.strip()]
        return "\n".join([*lines, "output of setup.sh:", self.output.strip()[-3000:]])


async def replay(
    ground: Ground,
    recipe: Recipe,
    targets: Sequence[Goal],
    boxes: Boxes,
    *,
    only: Sequence[Served] | None = None,
    judge: Judge | None = None,
) -> Replay:
    """Run ``recipe`` in a fresh box and try ``targets``; with ``only``, the index serves just those files."""
    with ground.kit.index(ground, only) as index:
        box = await boxes.build(ground, index.port, recipe.files())
        try:
            done = await shell(box, f"sh -e {SETUP}", timeout=SETUP_SECONDS)
            problems = []
            if done.timed_out or done.returncode:
                how = "did not end in time" if done.timed_out else f"ended with {done.returncode}"
                problems.append(f"setup.sh {how}")
            left = await ground.kit.left(box, ground, index.served.values())
            problems += left.problems
            found = (
                ()
                if done.returncode
                else await try_targets(box=box, recipe=recipe, targets=targets, boxes=boxes, judge=judge)
            )
        except BoxError as error:
            return Replay("", (f"the workspace cannot be read back: {error}",), ())
        finally:
            await box.close()
        output = done.stdout.decode("utf-8", "replace")
        served = tuple(one for _, one in sorted(index.served.items()))
        output += "".join(f"index: {problem}\n" for problem in index.problems)
        return Replay(
            output=output,
            problems=tuple(problems),
            reached=found,
            served=served,
            installed=left.installed,
            added=left.added,
        )


async def try_targets(
    box: Sandbox, recipe: Recipe, targets: Sequence[Goal], boxes: Boxes, judge: Judge | None = None
) -> tuple[Reached, ...]:
    """Start the services, then run each target in turn, all in the same box."""
    clean = await boxes.backend.create(BoxSpec())
    try:
        why = await try_services(box, recipe.start) if recipe.start else ""
        if why:
            return tuple(Reached(goal, "", why) for goal in targets)
        found = []
        for goal in targets:
            done = await shell(box, goal.command, timeout=TARGET_SECONDS)
            found.append(await reached(goal, done, clean, judge))
        return tuple(found)
    finally:
        await clean.close()
