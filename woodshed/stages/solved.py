"""SFT on solved rollouts: on those of RL, for its final policy, and on those of rejection sampling, as a baseline."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from woodshed.evaluate.arms import ADOPT, REJECTION, SOLVED
from woodshed.policy.hf import load_policy, save_policy
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import round_of
from woodshed.record.run_directory import DirectoryError, RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.rl.hints.replies import Unplaced, places_of, repeated, replies_of
from woodshed.rollout.attempts import wasted_calls

from .baselines import SAMPLE
from .examples import Example, load_examples
from .policy import fine_tune_on


def fine_tune_on_rl(recipe: Recipe, run: RunDirectory, number: int | None = None) -> None:
    """SFT on the verified demonstrations and all distinct solved training rollouts. The result is ``policy/final``, or
    the policy that ends the round ``number`` of RL. If nothing was solved, it is RL's own policy."""
    current = round_of(recipe, number)
    kept = solved_in_rl(recipe, run)
    if kept:
        examples = [*examples_of(run, verified=True), *kept]
        # The next round counts its steps on from here.
        version = 0 if current.last else current.end
        fine_tune_on(recipe, run, current.own(SOLVED), examples, result=current.ends_with, version=version)
    else:
        save_policy(load_policy(run.policy(current.own("rl"))), run.policy(current.ends_with))
        run.write_result_of(current.own(SOLVED), {"note": "RL solved nothing: its own policy is the result"})


def fine_tune_on_samples(recipe: Recipe, run: RunDirectory) -> None:
    """SFT on the verified demonstrations and all distinct solved rollouts of the stage ``sample``."""
    kept = _solved(recipe, run, f"source = 'eval' AND group_id LIKE '{SAMPLE}:%'")
    fine_tune_on(recipe, run, REJECTION, [*examples_of(run, verified=True), *kept])


def examples_of(run: RunDirectory, *, verified: bool) -> list[Example]:
    """Return the demonstrations, all of them or only the verified ones, and what earlier runs solved if this run goes
    on from one. Raises DirectoryError if a stage made them and they are gone."""
    path = run.examples(verified=verified)
    if path.exists():
        return load_examples(path)
    if run.stage_result("demos") is not None or run.stage_result(ADOPT) is not None:
        raise DirectoryError(f"{path} is missing; restore it, or start over in another folder")
    return []


def solved_in_rl(recipe: Recipe, run: RunDirectory) -> list[Example]:
    """Return examples of all distinct solved training rollouts."""
    return _solved(recipe, run, "source = 'train'")


def _solved(recipe: Recipe, run: RunDirectory, where: str) -> list[Example]:
    """Return examples of the solved rollouts that ``where`` (SQL condition on the index of trajectories) selects,
    without those that the monitors of RL would quarantine or fail."""
    refused = recipe.rl.monitors.treated("quarantine", "fail")
    store = TrajectoryStore(run.trajectories)
    try:
        groups = sorted({row["group_id"] for row in store.rows(where) if row["resolved"]})
        solved = (t for group in groups for t in store.group(group) if t.outcome is not None and t.outcome.resolved)
        kept = (t for t in solved if t.flagged.isdisjoint(refused))
        limit, wasted = recipe.learn.sft.max_tokens, recipe.learn.solved.wasted_call_weight
        return different(kept, limit, wasted, summaries=recipe.rl.train_summaries)
    finally:
        store.close()


def different(
    trajectories: Iterable[Trajectory], max_tokens: int, wasted: float, *, summaries: bool = True
) -> list[Example]:
    """Return the segments of the trajectories as examples, each distinct token sequence once. Sampled tokens have
    weight 1, those of replies that only made wasted calls (``rollout.attempts.wasted_calls``) have weight
    ``wasted``. ``summaries``: False (``rl.train_summaries``) gives the tokens of summaries weight 0."""
    found: dict[bytes, Example] = {}
    for trajectory in trajectories:
        weighed = weights_of(trajectory, wasted, summaries=summaries)
        for segment, weights in zip(trajectory.segments, weighed, strict=True):
            tokens = segment.tokens[:max_tokens]
            if weights[:max_tokens].any():
                found.setdefault(tokens.tobytes(), Example(tokens.astype(np.int32), weights[:max_tokens]))
    return list(found.values())


def weights_of(trajectory: Trajectory, wasted: float, *, summaries: bool = True) -> list[NDArray[np.float32]]:
    """Return the loss weight of each token, by segment; see ``different``. No call counts as wasted if it is unclear
    which reply made which call (an agent that runs in the box)."""
    weights = [segment.sampled.astype(np.float32) for segment in trajectory.segments]
    for number, start, end in () if summaries else trajectory.summaries:
        weights[number][start:end] = 0
    try:
        replies, places = replies_of(trajectory), places_of(trajectory)
    except Unplaced:
        return weights
    calls = wasted_calls(trajectory.events)
    for reply, place in zip(replies[repeated(trajectory) :], places, strict=True):
        if reply.events and calls.issuperset(reply.events):
            weights[place.segment][place.start : place.end] *= wasted
    return weights
