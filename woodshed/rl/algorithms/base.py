"""What every algorithm does, and how to get one by name or by reference.

An algorithm sees whole trajectories: the graded rollouts of one task, those apart that were lost to infrastructure or
are quarantined. It says what every token weighs in which loss part (``train/parts.py``). To add one, write a class with
``annotate`` in a file of its own, anywhere, and put ``"my_module:MyClass"`` where a recipe names the algorithm; keyword
arguments of the class are ``rl.algorithm_options``.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from woodshed.record.settings import is_reference, load_reference
from woodshed.record.trajectory import Trajectory

Weights = Mapping[str, NDArray[np.float32]]
"""Loss part -> weight ``[T]`` of each token of a segment; a weight at t applies to predicting token t."""

_NAMES = {
    "mean_baseline": "MeanBaseline",
    "leave_one_out": "LeaveOneOut",
    "grpo": "Grpo",
    "gspo": "Gspo",
    "reinforce": "Reinforce",
    "raft": "Raft",
    "tree": "Tree",
}


class Algorithm(ABC):
    """Derive from it; keyword arguments of ``__init__`` beyond ``budget`` are options of the recipe."""

    parts: ClassVar[tuple[str, ...]] = ("rl",)
    """The loss parts that it weighs. Each is divided by a constant: rollouts of a batch, forks apart, x ``budget``."""

    least: ClassVar[int] = 2
    """Rollouts of a group that it needs at least; forks do not count."""

    forks: ClassVar[bool] = False
    """Whether it takes forks (``Trajectory.fork``); only then a group may have some."""

    def __init__(self, budget: int) -> None:
        """``budget``: tokens that a rollout may sample, ``rl.generation_budget``."""
        self.budget = budget

    @abstractmethod
    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        """For each of at least ``least`` trajectories, for each of its segments: what the tokens weigh.

        Tokens that were not sampled, and the first of a segment, must weigh 0.
        """

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> None:  # noqa: B027  (nothing is kept by default)
        """Told the groups of every batch in the order of steps, once the batch is annotated, as ``annotate`` saw them;
        after a restart all from the first step on. What an algorithm keeps from batch to batch, it keeps from here."""


def spread(trajectory: Trajectory, advantage: float, part: str = "rl") -> list[Weights]:
    """Every sampled token of every segment weighs ``advantage``, the summaries that the policy wrote included."""
    return [{part: np.where(predicted(s.sampled), advantage, 0).astype(np.float32)} for s in trajectory.segments]


def predicted(sampled_T: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The sampled tokens without the first of the context, which nothing predicts."""
    found_T = sampled_T.copy()
    found_T[:1] = False
    return found_T


def rewards_of(group: Sequence[Trajectory]) -> NDArray[np.float64]:
    return np.array([t.reward for t in group], np.float64)


def centred(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """R - mean(R); exactly 0 where all are equal, whatever rounding leaves."""
    gaps_G = rewards_G - rewards_G.mean()
    return np.where(np.abs(gaps_G) < 1e-9, 0.0, gaps_G)


def names() -> tuple[str, ...]:
    """The algorithms that come with Woodshed."""
    return tuple(_NAMES)


def load_algorithm(name: str, *, budget: int, options: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm of a name, or of a reference ``"module:Class"``. Raises ValueError that says what is wrong."""
    if name not in _NAMES and not is_reference(name):
        raise ValueError(f"rl.algorithm: unknown algorithm {name!r}; known: {', '.join(_NAMES)}, or 'module:Class'")
    place = f"{__package__}.{name}:{_NAMES[name]}" if name in _NAMES else name
    kind = load_reference(place, "rl.algorithm")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ValueError(f"rl.algorithm: {name!r} is no class that derives from woodshed.rl.algorithms.Algorithm")
    options = dict(options or {})
    known = [n for n, p in inspect.signature(kind).parameters.items() if n != "budget" and p.kind != p.VAR_KEYWORD]
    if unknown := sorted(set(options) - set(known)):
        said = f"known: {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"rl.algorithm_options: {name} has no option {unknown[0]!r}; {said}")
    try:
        return kind(budget, **options)
    except TypeError as error:  # it is abstract, say
        raise ValueError(f"rl.algorithm: {name!r}: {error}") from None
