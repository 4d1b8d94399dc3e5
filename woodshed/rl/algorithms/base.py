"""Base class of the algorithms, and how to load one by name or by reference.

An algorithm gets whole trajectories: the graded rollouts of one task, without those that were lost to infrastructure
or are quarantined. It gives every token a weight in each loss part (``train/parts.py``). To add one, write a class with
``annotate`` in a file of its own, anywhere, and put ``"my_module:MyClass"`` where a recipe names the algorithm; keyword
arguments of the class are ``rl.algorithm_options``.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from woodshed.record.settings import is_reference, load_reference
from woodshed.record.trajectory import Trajectory
from woodshed.train.batch import PARTS

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


class AlgorithmError(Exception):
    """The weights that an algorithm returned cannot be used; the message names the algorithm and the rollout."""


class Algorithm(ABC):
    """Base class; keyword arguments of ``__init__`` beyond ``budget`` are options of the recipe."""

    parts: ClassVar[tuple[str, ...]] = ("rl",)
    """Loss parts that the algorithm weighs. Each is divided by a constant: rollouts of a batch (without forks) x
    ``budget``."""

    least: ClassVar[int] = 2
    """Minimum number of rollouts in a group; forks do not count."""

    forks: ClassVar[bool] = False
    """True if the algorithm supports forks (``Trajectory.fork``); otherwise a group must not have any."""

    label: str = ""
    """Label of rollouts (``Task.labels``) that the algorithm needs; a run whose training tasks lack it is refused."""

    def __init__(self, budget: int) -> None:
        """``budget``: number of tokens that a rollout may sample, ``rl.generation_budget``."""
        self.budget = budget

    @abstractmethod
    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        """Return the token weights of each trajectory, one entry per segment. ``group`` has at least ``least`` roots.

        Tokens that were not sampled, and the first token of a segment, must have weight 0.
        """

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> None:  # noqa: B027  (nothing is kept by default)
        """Update the state that the algorithm keeps between batches.

        Called with the groups of every batch, as ``annotate`` saw them, after the batch is annotated and in the order
        of steps; after a restart it is called again for all batches from the first step on.
        """


def spread(trajectory: Trajectory, advantage: float, part: str = "rl") -> list[Weights]:
    """Give every sampled token of every segment the weight ``advantage``, including summaries by the policy."""
    return [{part: np.where(predicted(s.sampled), advantage, 0).astype(np.float32)} for s in trajectory.segments]


def predicted(sampled_T: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask of sampled tokens, without the first token of the context, which has no prediction."""
    found_T = sampled_T.copy()
    found_T[:1] = False
    return found_T


def rewards_of(group: Sequence[Trajectory]) -> NDArray[np.float64]:
    return np.array([t.reward for t in group], np.float64)


def centred(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R - mean(R), with differences below 1e-9 (rounding) set to exactly 0."""
    gaps_G = rewards_G - rewards_G.mean()
    return np.where(np.abs(gaps_G) < 1e-9, 0.0, gaps_G)


def annotate(algorithm: Algorithm, group: Sequence[Trajectory]) -> list[list[Weights]]:
    """Return the token weights of a group. Raises AlgorithmError if they break the contract of ``Algorithm.annotate``,
    because a shorter answer, for one, would leave rollouts out of the batch."""
    name = f"rl.algorithm: {type(algorithm).__module__}:{type(algorithm).__name__}"
    given = algorithm.annotate(group)
    if not isinstance(given, Sequence) or len(given) != len(group):
        count = len(given) if isinstance(given, Sequence) else type(given).__name__
        raise AlgorithmError(
            f"{name}: annotate must return a list with one entry for each of {len(group)} rollouts, "
            f"and returned {count}"
        )
    for trajectory, segments in zip(group, given, strict=True):
        if problem := _problem(trajectory, segments, algorithm.parts):
            raise AlgorithmError(f"{name}: annotate, rollout {trajectory.id}: {problem}")
    return list(given)


def _problem(trajectory: Trajectory, segments: Sequence[Weights], parts: Sequence[str]) -> str | None:
    """Return what is wrong with the weights of one trajectory; None if nothing is."""
    if not isinstance(segments, Sequence) or len(segments) != len(trajectory.segments):
        return f"its weights must be a list with one entry for each of {len(trajectory.segments)} segments"
    for segment, weights in zip(trajectory.segments, segments, strict=True):
        if not isinstance(weights, Mapping):
            return f"the weights of a segment must map loss parts to arrays, and are of type {type(weights).__name__}"
        for part, weight_T in weights.items():
            if part not in parts:
                return f"weights for the loss part {part!r}, which `parts` = {tuple(parts)} does not name"
            if np.shape(weight_T) != (len(segment),) or np.asarray(weight_T).dtype.kind not in "fiu":
                return f"weights[{part!r}] must be an array of {len(segment)} numbers, one for each token"
            if not np.isfinite(weight_T).all():
                return f"weights[{part!r}] holds a value that is not finite"
            if np.any(np.asarray(weight_T)[~predicted(segment.sampled)]):
                return f"weights[{part!r}] weighs a token that was not sampled, or the first one"
    return None


def _misfit(value: Any, default: Any) -> str | None:
    """Return what an option must be, judged by its default, if ``value`` is something else; None if it fits."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, (int, float)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        return None if number else "a number"
    return "a string" if isinstance(default, str) and not isinstance(value, str) else None


def names() -> tuple[str, ...]:
    """Return the names of the algorithms that come with Woodshed."""
    return tuple(_NAMES)


def load_algorithm(name: str, *, budget: int, options: Mapping[str, Any] | None = None) -> Algorithm:
    """Return the algorithm with this name or reference ``"module:Class"``. Raises ValueError."""
    if name not in _NAMES and not is_reference(name):
        raise ValueError(f"rl.algorithm: unknown algorithm {name!r}; known: {', '.join(_NAMES)}, or 'module:Class'")
    place = f"{__package__}.{name}:{_NAMES[name]}" if name in _NAMES else name
    kind = load_reference(place, "rl.algorithm")
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ValueError(f"rl.algorithm: {name!r} is no class that derives from woodshed.rl.algorithms.Algorithm")
    options = dict(options or {})
    parameters = inspect.signature(kind).parameters
    known = [n for n, p in parameters.items() if n != "budget" and p.kind != p.VAR_KEYWORD]
    if unknown := sorted(set(options) - set(known)):
        said = f"known: {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"rl.algorithm_options: {name} has no option {unknown[0]!r}; {said}")
    for option, value in options.items():
        if option in known and (wanted := _misfit(value, parameters[option].default)):
            raise ValueError(f"rl.algorithm_options: {option} of {name} must be {wanted} (got {value!r})")
    if isinstance(kind.parts, str) or not set(kind.parts) <= set(PARTS):
        raise ValueError(f"rl.algorithm: {name!r}: parts must be a tuple of {', '.join(PARTS)} (got {kind.parts!r})")
    try:
        return kind(budget, **options)
    except TypeError as error:  # for example, the class is abstract
        raise ValueError(f"rl.algorithm: {name!r}: {error}") from None
    except Exception as error:  # whatever a user's class raises
        raise ValueError(f"rl.algorithm: {name!r}: {type(error).__name__}: {error}") from error
