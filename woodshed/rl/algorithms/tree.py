"""Credit assignment in a tree: a rollout and the forks that continue it from one of its states.

The baseline of a continuation is the mean reward of all continuations from the same state, so what happened before that
state adds no noise (compare the Monte Carlo values of VinePPO, Kazemnejad et al. 2024, arXiv:2410.01679).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, centred, predicted, rewards_of, spread


class Tree(Algorithm):
    """Advantages before and after the state (node) at which a root is forked.

    The siblings at a node are the root's own continuation and its forks. Tokens after the node get R - mean(R of the
    siblings). The root's tokens before the node get V - mean(V of all roots), where V of a root is the mean reward of
    its siblings, or R if it has no forks. Tokens that a fork shares with its root are context in the fork, so each
    token is trained once.

    Without forks these are the advantages of ``mean_baseline``. Every continuation weighs as much as a whole rollout,
    so states that are forked count more than others. Forks of a root that is not in the group are compared among
    themselves.
    """

    forks = True

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        siblings: dict[str, list[Trajectory]] = {}
        for trajectory in group:
            siblings.setdefault(_root(trajectory), []).append(trajectory)
        after: dict[str, float] = {}
        for node in siblings.values():
            after |= {t.id: float(advantage) for t, advantage in zip(node, centred(rewards_of(node)))}
        roots = [t for t in group if t.fork is None]
        values_R = np.array([rewards_of(siblings[root.id]).mean() for root in roots], np.float64)
        before = {t.id: float(advantage) for t, advantage in zip(roots, centred(values_R))} if roots else {}
        return [self._weights(t, siblings[_root(t)], before, after) for t in group]

    @staticmethod
    def _weights(
        trajectory: Trajectory, node: Sequence[Trajectory], before: dict[str, float], after: dict[str, float]
    ) -> list[Weights]:
        if trajectory.fork is not None:
            return spread(trajectory, after[trajectory.id])
        fork = next((t.fork for t in node if t.fork is not None), None)
        if fork is None:
            return spread(trajectory, before[trajectory.id])
        found: list[Weights] = []
        for index, segment in enumerate(trajectory.segments):
            time_T = np.arange(len(segment))
            reached_T = (index > fork.segment) | ((index == fork.segment) & (time_T >= fork.tokens))
            weight_T = np.where(reached_T, after[trajectory.id], before[trajectory.id])
            found.append({"rl": np.where(predicted(segment.sampled), weight_T, 0).astype(np.float32)})
        return found


def _root(trajectory: Trajectory) -> str:
    return trajectory.id if trajectory.fork is None else trajectory.fork.parent
