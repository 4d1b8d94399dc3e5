import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.train.packing import balance, micro_batches, sequence_cost


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 1000))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = micro_batches(lengths, budget)
    rows = np.concatenate(groups) if groups else np.array([], int)
    assert sorted(rows.tolist()) == [i for i, n in enumerate(lengths) if n]
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_sorting_keeps_padding_small() -> None:
    lengths = np.random.default_rng(0).integers(50, 500, 200)
    padded = sum(len(g) * lengths[g].max() for g in micro_batches(lengths, 4096))
    assert padded < 1.06 * lengths.sum()


def test_cost_counts_attention() -> None:
    assert sequence_cost([128], 128)[0] == pytest.approx(128 * (1 + 1 / 12))
    ratio = sequence_cost([12 * 64], 64) / sequence_cost([6 * 64], 64)
    assert ratio[0] == pytest.approx(2 * 2 / 1.5)


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=60), st.integers(1, 9))
def test_balance_bound(costs: list[float], ranks: int) -> None:
    plan = balance(costs, ranks)
    assert sorted(i for rank in plan for i in rank) == list(range(len(costs)))
    loads = [sum(costs[i] for i in rank) for rank in plan]
    mean = sum(costs) / ranks
    assert max(loads) <= (mean + (1 - 1 / ranks) * max(costs)) * (1 + 1e-9)


def test_balance_of_a_typical_batch_is_within_two_percent() -> None:
    costs = sequence_cost(np.random.default_rng(0).integers(100, 600, 96), 128)
    loads = [sum(costs[i] for i in rank) for rank in balance(costs, 8)]
    assert max(loads) / np.mean(loads) < 1.02
