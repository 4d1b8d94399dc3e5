"""Keys and values of a step land in the cache where they belong, and nowhere else; queries see theirs alone."""

import numpy as np
import pytest
import torch

from woodshed.engine import row_attention
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
        layers=1,
        kv_heads=KV_HEADS,
        head_dim=WIDTH,
        dtype=torch.float32,
        device=torch.device("cpu"),
        budget=1 << 24,
        max_rows=8,
        step=LENGTH,
    )
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize(
    ("decoding", "chunks"),
    [
        ([1, 4], []),  # two rows of other lengths, with idle ones in between
        ([0, 1, 2, 3, 4, 5, 6], []),
        ([3, 6], []),  # longer than half of what a row holds
        ([2, 5], [Chunk(0, 0, LONG_CHUNK), Chunk(6, 9, 5)]),
        ([], [Chunk(3, 0, 128), Chunk(1, 40, 135)]),
    ],
)
def test_what_queries_see(dtype, bfloat16, decoding: list[int], chunks: list[Chunk], monkeypatch) -> None:
    """Whatever the processor is said to multiply well."""
    monkeypatch.setattr(row_attention, "onednn_multiplies_bfloat16", lambda: bfloat16)
    heads = 2 * KV_HEADS
    cache = RowCache(
        layers=1,
        kv_heads=KV_HEADS,
        head_dim=WIDTH,
        dtype=dtype,
        device=torch.device("cpu"),
        budget=1 << 24,
        max_rows=8,
        step=LENGTH,
    )
    rng = torch.Generator().manual_seed(1)
    for row in range(7):
        cache.acquire(None, LENGTH)
        cache.lengths[row] = 9 + 17 * row
    for buffer in (cache.keys[0], cache.values[0]):
        buffer.copy_(torch.randn(buffer.shape, generator=rng))
    seen = [(row, int(cache.lengths[row])) for row in decoding]
    seen += [(c.row, at) for c in chunks for at in range(c.start, c.start + c.count)]
    q, k, v = (torch.randn(len(seen), h, WIDTH, generator=rng).to(dtype) for h in (heads, KV_HEADS, KV_HEADS))
    masks = CausalMasks(cache.device, dtype)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # in another order of memory
    whole = StepAttention(cache, heads, np.array(decoding, np.int64), chunks, masks)(0, q, k, v)
    keys, values = cache.keys[0].double(), cache.values[0].double()
    expected = torch.empty(q.shape, dtype=torch.float64)
    for i, (row, at) in enumerate(seen):
        for head in range(heads):
            of = head // (heads // KV_HEADS)
            weights = (keys[row, of, : at + 1] @ q[i, head].double() / WIDTH**0.5).softmax(0)
            expected[i, head] = weights @ values[row, of, : at + 1]
    assert (whole.double() - expected).abs().max() < 20 * torch.finfo(dtype).eps
    ends = np.array([i for i, (row, at) in enumerate(seen) if (row, at + 1) not in seen], np.int64)
    ends = ends[np.argsort([seen[i][0] for i in ends])]
    if len(ends) < len(seen):
        last = StepAttention(cache, heads, np.array(decoding, np.int64), chunks, masks)
        last.only(ends)
        assert (last(0, q[ends], k, v).double() - expected[ends]).abs().max() < 20 * torch.finfo(dtype).eps
