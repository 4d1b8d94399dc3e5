"""The rollout side of RL: dispatch, grade and batch rollouts, then export the resulting policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import uvloop

from woodshed.engine.grammar import Grammars
from woodshed.harness.loop import registry_for
from woodshed.monitors import count, quarantined
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import Round, round_of
from woodshed.record.jsonl import read_jsonl
from woodshed.record.run_directory import RunDirectory
from woodshed.record.settings import is_reference
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rl.batching import History, build_batch, is_flat
from woodshed.rl.conservation import check_conservation
from woodshed.rl.controller import Controller
from woodshed.rl.forks import roots
from woodshed.rl.growth.growth import Growth
from woodshed.rl.growth.record import GrowthRecord
from woodshed.rl.health.measure import measure
from woodshed.rl.health.watch import HealthWatch
from woodshed.rl.hints import Hinter, renderer, usages
from woodshed.rl.ledger import Ledger
from woodshed.rl.reader.reader import LABEL as READER
from woodshed.rollout.failures import INFRA
from woodshed.sandbox.pool import Pool
from woodshed.train.batch import TrainBatch
from woodshed.weights.fence import Head

from .arena import open_arena
from .failures import StageFailed
from .pace import Pace
from .tasks import key_digest, load_split, task_folder, with_key


def reinforce(recipe: Recipe, run: RunDirectory, number: int | None = None) -> None:
    """Run all steps of RL, or those of the round ``number``."""
    uvloop.run(_reinforce(recipe, run, round_of(recipe, number)))


@cache
def _grammars(run: RunDirectory) -> Grammars:
    """Return the grammars for the policy's vocabulary. Called only if a grammar was used, because it imports torch."""
    from woodshed.policy.hf import load_chat

    return Grammars(load_chat(run.policy("sft"))[1])


def _hinter(recipe: Recipe, run: RunDirectory, tasks: Mapping[str, Task]) -> Hinter:
    """Return the hinter of a run. Raises StageFailed if the policy's chat format cannot show a hint."""
    settings = recipe.rl.hints
    if not settings.weight:
        return Hinter(settings, tasks)
    from woodshed.policy.hf import load_chat  # imports torch

    own = recipe.policy.format if is_reference(recipe.policy.format) else None
    config, tokenizer, chat, _ = load_chat(run.policy("sft"), format=own)
    try:
        render = renderer(chat, tokenizer, settings.role)
    except ValueError as error:
        raise StageFailed(str(error)) from None
    own_agent = recipe.harness.program is None
    tools = usages(chat, registry_for(recipe.harness).schemas()) if own_agent else {}
    return Hinter(
        settings,
        tasks,
        tools=tools,
        render=render,
        max_positions=config.max_positions,
        summaries=recipe.rl.train_summaries,
    )


async def _reinforce(recipe: Recipe, run: RunDirectory, current: Round) -> None:
    settings = recipe.rl.model_copy(update={"steps": current.end})
    stage = current.own("rl")
    store = TrajectoryStore(run.trajectories)
    ledger = Ledger(run.ledger)
    algorithm = settings.make_algorithm()
    pace = Pace()
    chain = current.beside(run.chain(recipe.weights.store))
    published = Head(chain, seconds=1.0 if recipe.weights.store else 0.0)

    def head() -> int:
        return published() or current.start

    def boxes() -> dict[str, Any]:
        return arena.backend.stats() if isinstance(arena.backend, Pool) else {}

    def left_out(trajectory: Trajectory) -> bool:
        return quarantined(trajectory, settings.monitors)

    def groups_of(step: int) -> list[list[Trajectory]]:
        return [store.group(group) for group in ledger.batches().get(step, [])]

    history = History(algorithm, groups_of, left_out)
    tasks = load_split(run, recipe.tasks.family, "train")
    by_name = {task.name: task for task in tasks}  # tasks made during the run are added
    hints = _hinter(recipe, run, by_name)

    def build(groups: list[list[Trajectory]], step: int) -> tuple[TrainBatch, dict[str, Any]]:
        history.until(step)
        batch, counts = build_batch(
            groups,
            algorithm,
            step=step,
            batch_id=f"step-{step:06d}",
            generation_budget=settings.generation_budget,
            rollouts=settings.groups_per_step * settings.group_size,
            kl_beta=settings.kl_beta,
            left_out=left_out,
            grammars=lambda: _grammars(run),
            hints=hints,
            caps=settings.reward_caps(),
            train_summaries=settings.train_summaries,
        )
        statistics = {**asdict(counts), **describe(groups, settings.probes), **measure(groups, step), "boxes": boxes()}
        note = f"batch {step}: pass rate {statistics['pass_rate']:.2f}, best of group {statistics['best_of_group']:.2f}"
        speed = pace.at(ledger.settled() + counts.rollouts)
        # Progress counts trained steps: with a large policy a step of the trainer takes longer than its rollouts.
        run.write_progress(stage, head(), settings.steps, f"{note}  {speed}; {_last_action(groups)}")
        return batch, statistics

    run.stage_metrics("rollouts").parent.mkdir(parents=True, exist_ok=True)
    health = HealthWatch(
        settings.alarms,
        start=current.start,
        steps=settings.steps,
        rollouts=run.stage_metrics("rollouts"),
        trainer=run.stage_metrics("trainer"),
        log=run.stage_metrics("alarms"),
    )
    grading = with_key(recipe.grading, run.root)

    def notice(text: str) -> None:
        run.write_progress(stage, head(), settings.steps, text)

    async with open_arena(recipe, run, grading=grading, training=True) as arena:
        growth = None
        if settings.growth.make or settings.growth.check:
            growth = Growth(
                settings.growth,
                by_name,
                ledger,
                GrowthRecord(run.ledger),
                store,
                folder=task_folder(run, recipe.tasks.family, "grown"),
                seed=recipe.tasks.synthetic.seed + recipe.seed,
                backend=arena.backend,
                layers=arena.layers,
                grading=grading,
                notice=notice,
            )
        controller = Controller(
            arena,
            tasks,
            ledger,
            store,
            settings,
            batches=run.batches,
            metrics=run.stage_metrics("rollouts"),
            head=head,
            build=build,
            seed=recipe.seed,
            least=algorithm.least,
            flat=lambda group: is_flat(group, algorithm, left_out, hints),
            growth=growth,
            health=health,
            notice=notice,
            all_steps=recipe.rl.steps,
        )
        pace.at(ledger.settled())  # where it begins
        await controller.run()

    from .policy import export_head  # imports torch, which rollouts do without

    export_head(run, chain, stage if recipe.learn.solved.after_rl else "final")
    stored = [row["id"] for row in store.rows("source = 'train'")]
    batches, trainer = (read_jsonl(run.stage_metrics(name)) for name in ("rollouts", "trainer"))
    found = check_conservation(run.ledger, stored, batches, trainer)
    note = f"{settings.steps} steps, {len(store)} trajectories stored; {found}"
    rollouts = {"dispatched": found.dispatched, "trained": found.trained, "dropped": dict(found.dropped)}
    result = {
        "note": note,
        "held_out_key": key_digest(grading),
        "rollouts": rollouts,
        "step": current.end,
        **ledger.counts(),
    }
    if growth is not None:
        grown = growth.record.counts()
        result["growth"] = grown
        result["note"] = (
            f"{note}; {grown['made']} harder tasks made, {grown['taken_out']} of {grown['checked']} taken out"
        )
        growth.record.close()
    run.write_result_of(stage, result)
    ledger.close()
    store.close()


def describe(groups: Sequence[Sequence[Trajectory]], probes: int | None = None) -> dict[str, Any]:
    """Return statistics of the rollouts of a batch: pass rate and best of group (both without forks), pass rate of
    forks, mean effort, number of rollouts per status, findings of the monitors and verdicts of the judge, mean
    duration.

    ``probes`` (``rl.probes``): the pass rate is that of so many rollouts of each group, as only groups that disagree
    have more.
    """
    everyone = [t for group in groups for t in group]
    ended = [t for t in everyone if t.status != INFRA]
    graded = [[t for t in roots(group) if t.status != INFRA] for group in groups]
    forks = [bool(t.outcome and t.outcome.resolved) for t in ended if t.fork is not None]
    solved = [[bool(t.outcome and t.outcome.resolved) for t in group] for group in graded if group]
    effort = {k: float(np.mean([getattr(t.effort, k) for t in ended])) for k in vars(everyone[0].effort)}
    statuses: dict[str, int] = {}
    for trajectory in everyone:
        statuses[trajectory.status] = statuses.get(trajectory.status, 0) + 1
    return {
        "pass_rate": float(np.mean([s for group in solved for s in group[:probes]])),
        "best_of_group": float(np.mean([any(group) for group in solved])),
        **({"fork_pass_rate": float(np.mean(forks))} if forks else {}),
        "effort": effort,
        "statuses": statuses,
        "findings": count(everyone),
        "judge": dict(Counter(t.labels["judge"] for t in everyone if "judge" in t.labels)),
        "reader": dict(Counter(t.labels[READER] for t in everyone if READER in t.labels)),
        "ratings": {name: float(np.mean(scores)) for name, scores in _ratings(everyone).items()},
        "rollout_seconds": float(np.mean([t.ended - t.started for t in everyone])),
    }


def _ratings(trajectories: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Return the reader's scores by rubric, without those of questions that failed."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, score in trajectory.ratings.items():
            found.setdefault(name, []).append(score)
    return found


def _last_action(groups: Sequence[Sequence[Trajectory]]) -> str:
    newest = max((t for group in groups for t in group), key=lambda t: t.ended)
    calls = " > ".join(event.name or "?" for event in newest.events[-6:])
    return f"{newest.task.split('/')[-1]}: {calls} [{newest.status}]"
