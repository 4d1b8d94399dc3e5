"""Algorithms that break the contract of ``annotate``, or cannot be made: said before anything is trained."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import Algorithm, AlgorithmError, load_algorithm, spread
from woodshed.rl.batching import build_batch, is_flat

from .test_batching import trajectory


class Answers(Algorithm):
    """Returns what a test wants."""

    answer: Any = None

    def annotate(self, group: Sequence[Trajectory]) -> Any:
        return self.answer([spread(t, 0.5) for t in group])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda w: w[1:], "annotate must return a list with one entry for each of 2 rollouts, and returned 1"),
        (iter, "for each of 2 rollouts, and returned list_iterator"),
        (lambda w: None, "for each of 2 rollouts, and returned NoneType"),
        (lambda w: [w[0], w[1][:1]], "rollout b: its weights must be a list with one entry for each of 2 segments"),
        (lambda w: [w[0], w[1][0]], "rollout b: its weights must be a list"),
        (lambda w: [[w[0][0]["rl"]], w[1]], "rollout a: the weights of a segment must map loss parts to arrays"),
        (
            lambda w: [[{"ce": w[0][0]["rl"]}], w[1]],
            "rollout a: weights for the loss part 'ce', which `parts` = ('rl',)",
        ),
        (lambda w: [[{"rl": w[0][0]["rl"][:2]}], w[1]], "weights['rl'] must be an array of 3 numbers"),
        (lambda w: [[{"rl": 0.5}], w[1]], "weights['rl'] must be an array of 3 numbers"),
        (lambda w: [[{"rl": w[0][0]["rl"] * np.nan}], w[1]], "weights['rl'] holds a value that is not finite"),
        (lambda w: [[{"rl": w[0][0]["rl"] + 1}], w[1]], "weights['rl'] weighs a token that was not sampled"),
    ],
)
def test_weights_that_cannot_be_used(answer: Any, said: str) -> None:
    ours = Answers(10)
    ours.answer = answer
    group = [trajectory("a", 1.0, ["pss"]), trajectory("b", 0.0, ["ps", "pps"])]
    for use in (
        lambda: build_batch([group], ours, step=1, batch_id="x", generation_budget=10),
        lambda: is_flat(group, ours, lambda t: False),
    ):
        with pytest.raises(AlgorithmError) as found:
            use()
        assert str(found.value).startswith(f"rl.algorithm: {__name__}:Answers: ") and said in str(found.value)


class UnknownPart(Answers):
    parts = ("advantage",)


class PartsAreText(Answers):
    parts = "ce"  # type: ignore[assignment]


class Raises(Answers):
    def __init__(self, budget: int) -> None:
        raise RuntimeError(f"no table for {budget}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("UnknownPart", "parts must be a tuple of rl, ppo, gspo, ce, ref_kl, hint_kl (got ('advantage',))"),
        ("PartsAreText", "parts must be a tuple"),
        ("Raises", "RuntimeError: no table for 10"),
    ],
)
def test_a_class_that_cannot_be_used(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"rl.algorithm: '{__name__}:{name}': ") as found:
        load_algorithm(f"{__name__}:{name}", budget=10)
    assert said in str(found.value)
