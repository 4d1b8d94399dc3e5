"""The sampler against written-out definitions and exact distributions."""

import math

import numpy as np
import pytest
import torch

from woodshed.engine.protocol import Sampling
from woodshed.engine.sampler import adjusted_logits, sample


def reference(logits: list[float], s: Sampling) -> list[float]:
    """Probabilities by the definitions, token by token in double precision."""
    x = [v + s.logit_bias.get(i, 0.0) for i, v in enumerate(logits)]
    x = [v / s.temperature for v in x]
    order = sorted(range(len(x)), key=lambda i: -x[i])
    kept = order[: s.top_k] if s.top_k else order
    weight = {i: math.exp(x[i] - x[order[0]]) for i in kept}
    total = sum(weight.values())
    nucleus, mass = [], 0.0
    for i in kept:
        if mass >= s.top_p and nucleus and s.top_p < 1:
            break
        nucleus.append(i)
        mass += weight[i] / total
    final = [i for i in nucleus if weight[i] >= s.min_p * weight[order[0]]]
    mass = sum(weight[i] for i in final)
    return [weight[i] / mass if i in final else 0.0 for i in range(len(x))]


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=5),
    Sampling(top_p=0.7),
    Sampling(top_p=0.01),
    Sampling(min_p=0.2),
    Sampling(top_k=7, top_p=0.8, min_p=0.05, temperature=1.7),
    Sampling(logit_bias={3: 4.0, 5: -math.inf}, temperature=0.9),
]


def test_every_row_of_a_mixed_batch_follows_its_definition():
    logits = torch.randn(len(SAMPLINGS), 20, generator=torch.Generator().manual_seed(0)) * 2
    got = adjusted_logits(logits.clone(), SAMPLINGS).softmax(-1)
    for row, s in enumerate(SAMPLINGS):
        assert got[row].tolist() == pytest.approx(reference(logits[row].tolist(), s), abs=1e-6)


@pytest.mark.parametrize("s", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_draws_follow_the_exact_distribution(s):
    """Chi-square of 20,000 draws; the bound is about five standard deviations above the mean."""
    draws, logits = 20_000, torch.randn(1, 20, generator=torch.Generator().manual_seed(1)) * 1.5
    uniforms = np.random.default_rng(0).random(draws)
    ids, logps = sample(logits.expand(draws, -1), [s] * draws, uniforms.tolist())
    exact = np.array(reference(logits[0].tolist(), s))
    counts = np.bincount(ids, minlength=20)
    assert counts[exact == 0].sum() == 0
    possible = exact > 0
    chi2 = ((counts[possible] - draws * exact[possible]) ** 2 / (draws * exact[possible])).sum()
    freedom = possible.sum() - 1
    assert chi2 <= freedom + 5 * math.sqrt(2 * freedom) + 1e-6
    assert np.allclose(logps, np.log(exact[ids]), atol=1e-4)


def test_inputs_are_not_changed():
    logits = torch.zeros(2, 5)
    sample(logits, [Sampling(logit_bias={1: 9.0}, temperature=0.5), Sampling(top_k=1)], [0.1, 0.9])
    assert (logits == 0).all()


def test_extreme_uniforms_never_draw_the_impossible():
    logits = torch.tensor([[-math.inf, 0.0, 1.0, -math.inf]])
    for u in (0.0, 1e-17, 0.5, 1 - 2**-53):
        ids, logps = sample(logits, [Sampling()], [u])
        assert ids[0] in (1, 2) and math.isfinite(logps[0])


def test_greedy_takes_the_best_and_is_certain():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 1.0], [0.0, 1.0, 9.0]])
    greedy = Sampling(temperature=0.0)
    assert sample(logits, [greedy] * 3, [0.9] * 3) == ([1, 0, 2], [0.0] * 3)
    ids, logps = sample(logits, [greedy, Sampling(top_k=1), Sampling(temperature=0.0, logit_bias={0: 99.0})], [0.9] * 3)
    assert ids == [1, 0, 0] and logps == [0.0, 0.0, 0.0]


def test_bad_logits_show_as_nan():
    bad = torch.tensor([[0.0, math.nan], [0.0, math.inf], [0.0, 1.0]])
    _, logps = sample(bad, [Sampling()] * 3, [0.5] * 3)
    assert math.isnan(logps[0]) and math.isnan(logps[1]) and math.isfinite(logps[2])
    _, logps = sample(bad, [Sampling(temperature=0.0)] * 3, [0.5] * 3)
    assert math.isnan(logps[0]) and math.isnan(logps[1]) and logps[2] == 0.0


def test_half_precision_logits_are_sampled_in_float32():
    logits = torch.randn(1, 50, dtype=torch.bfloat16)
    _, logps = sample(logits, [Sampling(top_p=0.9)], [0.3])
    assert adjusted_logits(logits, [Sampling()]).dtype == torch.float32 and logps[0] <= 0


def test_a_row_is_drawn_in_the_same_way_beside_others():
    """A CPU draws from few rows at a time where the vocabulary is wide."""
    logits = 3 * torch.randn(11, 50_000, generator=torch.Generator().manual_seed(0))
    samplings = [SAMPLINGS[i % 3] if i != 4 else Sampling(temperature=0.0) for i in range(11)]
    uniforms = np.random.default_rng(0).random(11).tolist()
    alone = [sample(logits[i : i + 1], samplings[i : i + 1], uniforms[i : i + 1]) for i in range(11)]
    assert sample(logits, samplings, uniforms) == ([ids[0] for ids, _ in alone], [logps[0] for _, logps in alone])


def test_top_p_keeps_no_token_beyond_the_one_that_reaches_it() -> None:
    kept = adjusted_logits(torch.zeros(1, 4), [Sampling(top_p=0.5)]) > -torch.inf
    assert int(kept.sum()) == 2
