import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from woodshed.train.packing import by_length


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 1000))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = by_length(lengths, budget)
    rows = np.concatenate(groups) if groups else np.array([], int)
    assert sorted(rows.tolist()) == [i for i, n in enumerate(lengths) if n]
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


def test_sorting_keeps_padding_small() -> None:
    lengths = np.random.default_rng(0).integers(50, 500, 200)
    padded = sum(len(g) * lengths[g].max() for g in by_length(lengths, 4096))
    assert padded < 1.06 * lengths.sum()
