"""Baselines that RL has to beat: policies from the same demonstrations and the same number of rollouts, without RL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from woodshed.evaluate.arms import OTHER
from woodshed.evaluate.run import Sofar, evaluate
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings

from .arena import open_arena
from .examples import load_examples
from .pace import Pace
from .policy import fine_tune_on
from .tasks import key_digest, load_split, with_key

SAMPLE = "sample"
"""Name of the stage and evaluation that roll out for rejection sampling."""


def fine_tune_other(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on all demonstrations if RL starts from the verified ones, and the reverse."""
    fine_tune_on(recipe, run, OTHER, load_examples(run.examples(verified=not recipe.learn.sft.verified)))


def sample(recipe: Recipe, run: RunDirectory) -> None:
    """Roll out the policy that RL starts from on RL's tasks, as often as RL does and at the same temperature, 1."""
    uvloop.run(_sample(recipe, run))


async def _sample(recipe: Recipe, run: RunDirectory) -> None:
    settings, rl = recipe.rl, run.read_result_of("rl")
    tasks = tasks_of_rl(load_split(run, recipe.tasks.family, "train"), run)
    store, pace = TrajectoryStore(run.trajectories), Pace()

    def report(sofar: Sofar) -> None:
        run.write_progress(SAMPLE, sofar.done, sofar.total, f"{sofar}  {pace.at(sofar.done)}")

    grading = with_key(recipe.grading, run.root)
    async with open_arena(recipe, run, grading=grading, training=True) as arena:
        results = await evaluate(
            arena,
            tasks,
            store,
            name=SAMPLE,
            samples=_samples(settings, len(tasks), rl),
            concurrency=recipe.evaluate.concurrency,
            progress=report,
            retried=True,
        )
    store.close()
    solved, total = sum(map(sum, results.values())), sum(map(len, results.values()))
    note = f"{solved} of {total} rollouts solved"
    run.write_result_of(
        SAMPLE, {"note": note, "solved": solved, "rollouts": total, "held_out_key": key_digest(grading)}
    )


def tasks_of_rl(tasks: Sequence[Task], run: RunDirectory) -> list[Task]:
    """Return as many of the training ``tasks`` as RL has used: those that it used, and others in place of tasks that
    the run made itself. With dynamic sampling these are more than its batches hold."""
    ledger = Ledger(run.ledger)
    used = ledger.dispatched()
    ledger.close()
    return sorted(tasks, key=lambda task: task.name not in used)[: len(used)]


def _samples(settings: RLSettings, tasks: int, rl: Mapping[str, Any]) -> int:
    """Return the number of samples of each task: the group size, or with ``rl.probes``, where smaller groups are
    common, and with ``rl.forks``, where larger ones are, as many as RL had on average, rounded up."""
    if not tasks or (settings.probes is None and not settings.forks.count):
        return settings.group_size
    most = settings.group_size * (1 + settings.forks.count)
    return min(most, math.ceil(rl["rollouts"]["dispatched"] / tasks))
