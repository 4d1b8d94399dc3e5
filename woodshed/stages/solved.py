"""SFT on solved rollouts: of RL, for its result, and of rejection sampling, which RL is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from woodshed.evaluate.arms import REJECTION, SOLVED
from woodshed.monitors import quarantined
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.rl.hints.replies import Unplaced, places_of, replies_of
from woodshed.rollout.attempts import wasted_calls

from .baselines import SAMPLE
from .examples import Example, load_examples
from .policy import fine_tune_on


def fine_tune_on_rl(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on the verified demonstrations and every different training rollout that was solved, as ``policy/final``."""
    _fine_tune(recipe, run, SOLVED, "source = 'train'", "final", lambda t: quarantined(t, recipe.rl.monitors))


def fine_tune_on_samples(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on the verified demonstrations and every different solved rollout of the stage ``sample``."""
    _fine_tune(recipe, run, REJECTION, f"source = 'eval' AND group_id LIKE '{SAMPLE}:%'", None, lambda _: False)


def _fine_tune(
    recipe: Recipe,
    run: RunDirectory,
    stage: str,
    where: str,
    result: str | None,
    left_out: Callable[[Trajectory], bool],
) -> None:
    store = TrajectoryStore(run.trajectories)
    groups = sorted({row["group_id"] for row in store.rows(where) if row["resolved"]})
    solved = (t for group in groups for t in store.group(group) if t.outcome is not None and t.outcome.resolved)
    kept = different(
        (t for t in solved if not left_out(t)), recipe.learn.sft.max_tokens, recipe.learn.solved.wasted_call_weight
    )
    store.close()
    fine_tune_on(recipe, run, stage, [*load_examples(run.examples(verified=True)), *kept], result)


def different(trajectories: Iterable[Trajectory], max_tokens: int, wasted: float) -> list[Example]:
    """Their segments, each sequence of tokens once. Sampled tokens weigh 1, those of replies that only made wasted
    calls (``rollout.attempts.wasted_calls``) weigh ``wasted``."""
    found: dict[bytes, Example] = {}
    for trajectory in trajectories:
        for segment, weights in zip(trajectory.segments, weights_of(trajectory, wasted), strict=True):
            tokens = segment.tokens[:max_tokens]
            if weights[:max_tokens].any():
                found.setdefault(tokens.tobytes(), Example(tokens.astype(np.int32), weights[:max_tokens]))
    return list(found.values())


def weights_of(trajectory: Trajectory, wasted: float) -> list[NDArray[np.float32]]:
    """The loss weight of each token, by segment. All sampled tokens weigh 1 where it is unclear which reply made which
    call (an agent that runs in the box)."""
    weights = [segment.sampled.astype(np.float32) for segment in trajectory.segments]
    try:
        replies, places = replies_of(trajectory), places_of(trajectory)
    except Unplaced:
        return weights
    calls = wasted_calls(trajectory.events)
    for reply, place in zip(replies, places, strict=True):
        if reply.events and calls.issuperset(reply.events):
            weights[place.segment][place.start : place.end] *= wasted
    return weights
