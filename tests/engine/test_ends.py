"""A step whose last layer computes the sampled positions alone gives those, and the cache, what a whole step gives."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.engine.attention import CausalMasks, Chunk, StepAttention
from woodshed.engine.cache import RowCache

from . import models
from .models import DENSE, decoder

POLICY = decoder()
ROWS, LENGTH = 6, 32


def filled_cache(lengths: list[int], max_rows: int = ROWS) -> RowCache:
    return models.filled_cache(DENSE, lengths, length=LENGTH, max_rows=max_rows)


def step(cache: RowCache, decoding: list[int], chunks: list[Chunk], ends: list[int] | None) -> torch.Tensor:
    attention = StepAttention(
        cache, DENSE.num_heads, np.array(decoding, np.int64), chunks, CausalMasks(cache.device, cache.dtype)
    )
    if ends is not None:
        attention.only(np.array(ends, np.int64))
    tokens = torch.from_numpy(cache.tokens[attention.rows, attention.positions].astype(np.int64))
    wanted = None if ends is None else torch.tensor(ends, dtype=torch.int64)
    with torch.inference_mode():
        return POLICY.forward(tokens, torch.from_numpy(attention.positions), attention, ends=wanted)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 15), min_size=ROWS, max_size=ROWS),
    roles=st.lists(st.sampled_from(["idle", "decode", "chunk", "last chunk"]), min_size=ROWS, max_size=ROWS),
    counts=st.lists(st.integers(1, 16), min_size=ROWS, max_size=ROWS),
    order=st.permutations(range(ROWS)),
)
def test_sampled_positions_alone(lengths, roles, counts, order):
    decoding = [row for row in range(ROWS) if roles[row] == "decode"]
    chunks = [Chunk(row, lengths[row], counts[row]) for row in order if "chunk" in roles[row]]
    ends, at = list(enumerate(decoding)), len(decoding)
    for chunk in chunks:
        at += chunk.count
        if roles[chunk.row] == "last chunk":
            ends.append((at - 1, chunk.row))
    if len(ends) == at:
        return  # nothing could be left out
    wanted = [index for index, _ in sorted(ends, key=lambda end: end[1])]
    whole, some = filled_cache(lengths), filled_cache(lengths)
    expected, got = step(whole, decoding, chunks, None)[wanted], step(some, decoding, chunks, wanted)
    assert got.shape == expected.shape and torch.allclose(got, expected, atol=1e-4)
    for a, b in zip((*whole.keys, *whole.values), (*some.keys, *some.values)):
        assert torch.allclose(a, b, atol=1e-5)
