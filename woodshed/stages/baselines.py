"""What RL has to beat: policies from the same demonstrations and as many rollouts, without RL."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import uvloop

from woodshed.evaluate.arms import OTHER, REJECTION
from woodshed.evaluate.run import Sofar, evaluate
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory

from .arena import open_arena
from .examples import Example, load_examples
from .pace import Pace
from .policy import fine_tune_on
from .tasks import key_digest, load_split, with_key

SAMPLE = "sample"
"""Stage and evaluation name of the rollouts for rejection sampling."""


def fine_tune_other(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on all demonstrations where RL starts from the verified ones, and the reverse."""
    fine_tune_on(recipe, run, OTHER, load_examples(run.examples(verified=not recipe.learn.sft.verified)))


def sample(recipe: Recipe, run: RunDirectory) -> None:
    """Roll out the policy that RL starts from on RL's tasks, as often as RL does, at its temperature of 1."""
    uvloop.run(_sample(recipe, run))


async def _sample(recipe: Recipe, run: RunDirectory) -> None:
    settings = recipe.rl
    tasks = load_split(run, recipe.tasks.family, "train")[: settings.steps * settings.groups_per_step]
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
            samples=settings.group_size,
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


def fine_tune_on_solved(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on the verified demonstrations and every different solved rollout of ``sample``."""
    store = TrajectoryStore(run.trajectories)
    rows = store.rows(f"source = 'eval' AND group_id LIKE '{SAMPLE}:%'")
    groups = sorted({row["group_id"] for row in rows if row["resolved"]})
    solved = (t for group in groups for t in store.group(group) if t.outcome is not None and t.outcome.resolved)
    kept = different(solved, recipe.learn.sft.max_tokens)
    store.close()
    fine_tune_on(recipe, run, REJECTION, [*load_examples(run.examples(verified=True)), *kept])


def different(trajectories: Iterable[Trajectory], max_tokens: int) -> list[Example]:
    """Their segments, each sequence of tokens once; loss on sampled tokens."""
    found: dict[bytes, Example] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            tokens = segment.tokens[:max_tokens]
            weights = segment.sampled[:max_tokens].astype(np.float32)
            if weights.any():
                found.setdefault(tokens.tobytes(), Example(tokens.astype(np.int32), weights))
    return list(found.values())
