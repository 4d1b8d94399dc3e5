"""Keys and values of a step land in the cache where they belong, and nowhere else."""

import numpy as np
import pytest
import torch

from woodshed.engine.attention import LONG_CHUNK, CausalMasks, Chunk, StepAttention
from woodshed.engine.cache import RowCache

KV_HEADS, WIDTH, LENGTH = 2, 4, 3 * LONG_CHUNK
SHORT = LONG_CHUNK - 1


@pytest.mark.parametrize("decoding", [[], [1, 4]])
@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [Chunk(0, 3, SHORT)],
        [Chunk(0, 0, LONG_CHUNK)],
        [Chunk(5, 7, 2), Chunk(0, 9, 2 * LONG_CHUNK), Chunk(3, 0, 1), Chunk(2, 1, SHORT), Chunk(6, 5, LONG_CHUNK)],
        [Chunk(6, 5, LONG_CHUNK), Chunk(0, 0, 2 * LONG_CHUNK), Chunk(5, 7, 2)],
    ],
)
def test_where_keys_and_values_are_written(decoding: list[int], chunks: list[Chunk]) -> None:
    cache = RowCache(
        layers=1, kv_heads=KV_HEADS, head_dim=WIDTH, dtype=torch.float32, device=torch.device("cpu"), budget=1 << 24,
        max_rows=8, step=LENGTH,
    )  # fmt: skip
    for _ in range(7):
        cache.acquire(None, LENGTH)
    cache.lengths[:] = 11
    tokens = [(row, 11) for row in decoding]
    tokens += [(c.row, at) for c in chunks for at in range(c.start, c.start + c.count)]
    if not tokens:
        return
    rng = torch.Generator().manual_seed(0)
    new = torch.randn(2, KV_HEADS, len(tokens), WIDTH, generator=rng).transpose(1, 2)  # not contiguous
    expected = torch.zeros(2, *cache.keys[0].shape)
    for i, (row, at) in enumerate(tokens):
        expected[:, row, :, at] = new[:, i]
    attention = StepAttention(cache, 4, np.array(decoding, np.int64), chunks, CausalMasks(cache.device, cache.dtype))
    attention.write(0, new[0], new[1])
    assert torch.equal(cache.keys[0], expected[0]) and torch.equal(cache.values[0], expected[1])
