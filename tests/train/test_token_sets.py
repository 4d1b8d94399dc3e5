"""Sets of tokens as bits and as ids: what is stored, merged and turned into masks is the same as with Python sets."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.train.collate import AllowedSets
from woodshed.train.token_sets import SetTable, TokenSets, merge

VOCABULARY = 211
few = st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
many = st.sets(st.integers(0, VOCABULARY - 1), min_size=30, max_size=VOCABULARY)
sequences = st.lists(st.none() | st.lists(st.none() | few | many, min_size=1, max_size=12), min_size=1, max_size=4)


def numbered(wanted: list[set[int] | None]) -> tuple[TokenSets, np.ndarray]:
    table = SetTable()
    temporary = [-1 if ids is None else table.add_ids(np.array(sorted(ids))) for ids in wanted]
    return table.build(np.array(temporary, np.int32))


@given(sequences)
@settings(max_examples=60, deadline=None)
def test_sets_stay_what_they_are(wanted: list[list[set[int] | None] | None]) -> None:
    parts = [None if one is None else numbered(one) for one in wanted]
    lengths = [3 if one is None else len(one) for one in wanted]
    flat = [ids for one in wanted for ids in (one or [None] * 3)]
    sets, numbers = merge(parts, lengths)
    assert sets.problem() is None and len(numbers) == len(flat)
    assert [None if n < 0 else set(sets.of(n).tolist()) for n in numbers] == flat
    listed = {frozenset(ids) for ids in flat if ids is not None and 4 * len(ids) <= (max(ids) >> 3) + 1}
    assert len(sets.ends) == len(listed), "a set is stored as ids where that is shorter, and once"

    mask = AllowedSets(*map(torch.from_numpy, vars(sets).values())).mask(torch.from_numpy(numbers).long(), VOCABULARY)
    for row, ids in zip(mask.numpy(), flat):
        assert set(np.flatnonzero(row).tolist()) == (set(range(VOCABULARY)) if ids is None else ids)

    at = np.flatnonzero(numbers >= 0)
    for shift in (0, 1, 7):
        tokens = np.array([(min(flat[i] or {0}) + shift) % VOCABULARY for i in at], np.int32)
        found = sets.contains(numbers[at], tokens)
        assert found.tolist() == [int(t) in (flat[i] or ()) for i, t in zip(at, tokens)]


def test_inconsistent_sets_are_noticed() -> None:
    sets, _ = numbered([{3}, {200}, {4, 100}, set(range(0, 200, 2))])
    assert len(sets.bits) == 2 and len(sets.ends) == 2
    assert TokenSets(sets.bits, sets.ids[:-1], sets.ends).problem()
    assert TokenSets(sets.bits, sets.ids, sets.ends[::-1]).problem()
    assert TokenSets(sets.bits[0], sets.ids, sets.ends).problem()
