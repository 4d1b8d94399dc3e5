"""Evaluation of the policies of a run: each at its own best temperature, on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import uvloop

from woodshed.evaluate.arms import AFTER, ALONE, BEFORE, OTHER, REJECTION, stage_of
from woodshed.evaluate.run import Sofar, evaluate
from woodshed.evaluate.sweep import check_told, choose_temperature, draw_by_digest, mean_over_tasks
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import round_of
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import FAULT, INFRA, RunFailing
from woodshed.rollout.rollout import Arena

from .arena import open_arena
from .pace import Pace
from .tasks import check_training_data, key_digest, load_split, with_key


def evaluate_before(recipe: Recipe, run: RunDirectory) -> None:
    run.write_progress(BEFORE, 0, 0, "looking for held-out repositories in the training data")
    check_training_data(run)
    uvloop.run(_evaluate(recipe, run, BEFORE))


def evaluate_after(recipe: Recipe, run: RunDirectory, number: int | None = None) -> None:
    uvloop.run(_evaluate(recipe, run, round_of(recipe, number).own(AFTER)))


def evaluate_other_sft(recipe: Recipe, run: RunDirectory) -> None:
    uvloop.run(_evaluate(recipe, run, OTHER))


def evaluate_rejection(recipe: Recipe, run: RunDirectory) -> None:
    uvloop.run(_evaluate(recipe, run, REJECTION))


def evaluate_rl(recipe: Recipe, run: RunDirectory) -> None:
    uvloop.run(_evaluate(recipe, run, ALONE))


async def _evaluate(recipe: Recipe, run: RunDirectory, name: str) -> None:
    """Choose the temperature on the development tasks, once, then evaluate on the held-out tasks, and on real packages
    for transfer. Raises RunFailing if a gradable task has no sample."""
    settings = recipe.evaluate
    main = draw_by_digest(load_split(run, recipe.tasks.family, "heldout"), settings.tasks)
    transfer: list[Task] = []
    transferred = recipe.tasks.packages and recipe.tasks.main != "packages" and settings.package_samples
    if transferred and name in (BEFORE, AFTER):
        transfer = load_split(run, "packages", "heldout")
    store = TrajectoryStore(run.trajectories)

    async def results(arena: Arena, tasks: Sequence[Task], part: str, samples: int) -> dict[str, list[bool]]:
        pace = Pace()

        def report(sofar: Sofar) -> None:
            run.write_progress(name, sofar.done, sofar.total, f"{sofar}  {pace.at(sofar.done)}")

        return await evaluate(
            arena,
            tasks,
            store,
            name=part,
            samples=samples,
            concurrency=settings.concurrency,
            progress=report,
            retried=True,
        )

    if recipe.harness.program is not None:
        run.write_progress(name, 0, 0, "fetching what harness.program needs")
    grading = with_key(recipe.grading, run.root)
    async with open_arena(recipe, run, grading=grading, training=False) as arena:

        async def on_dev(at: float) -> dict[str, list[bool]]:
            dev = draw_by_digest(load_split(run, recipe.tasks.family, "dev"), settings.dev_tasks)
            tried_at = replace(arena, temperature=at)
            return await results(tried_at, dev, f"{name}-dev-{at:g}", settings.dev_samples)

        choice = run.read_result_of(f"{name}-temperature")
        if not choice:
            temperature, tried = await choose_temperature(settings.temperatures, on_dev)
            try:
                check_told(tried)
            except ValueError as error:
                raise RunFailing(str(error)) from None
            choice = {"temperature": temperature, "dev_pass1": {f"{at:g}": value for at, value in tried.items()}}
            # Development samples that were lost are run again after a kill, and must not change the choice by then.
            run.write_result_of(f"{name}-temperature", choice)
        temperature = choice["temperature"]
        arena = replace(arena, temperature=temperature)
        solved = await results(arena, main, name, settings.samples)
        on_packages = await results(arena, transfer, f"{name}-packages", settings.package_samples)
    ungraded = _ungraded(store, name) - set(solved)
    main = [task for task in main if task.name not in ungraded]
    if missing := len(main) - len(solved):
        raise RunFailing(
            f"{missing} of {len(main)} held-out tasks have no sample that the policy ended itself, so nothing can be "
            "compared; the log says what failed, and the same command tries them again"
        )
    lost = len(main) * settings.samples - sum(map(len, solved.values()))
    rate = mean_over_tasks(solved)
    note = f"pass@1 {rate:.3f} on {len(main)} tasks at temperature {temperature:g}"
    if lost:
        note += f" ({lost} samples lost to infrastructure errors)"
    if ungraded:
        note += f" ({len(ungraded)} tasks cannot be graded by other inputs)"
    if on_packages:
        note += f", real packages {mean_over_tasks(on_packages):.3f} on {len(on_packages)}"
    run.write_result_of(
        stage_of(name),
        {
            "pass1": rate,
            "note": note,
            **choice,
            "held_out_key": key_digest(grading),
        },
    )
    store.close()


def _ungraded(store: TrajectoryStore, name: str) -> set[str]:
    """Return the tasks of the evaluation ``name`` that cannot be graded: on the held-out inputs of one of their
    samples, the reference solution itself does not end."""
    rows = store.rows(f"source = 'eval' AND group_id LIKE '{name}:%' AND status = '{INFRA}'")
    return {row["task"] for row in rows if row["labels"].get(FAULT) == "task"}
