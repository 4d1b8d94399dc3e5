"""Decoding steps that are recorded once and replayed.

What records is torch's tracer, which needs no GPU: it keeps the operators with their shapes and their memory, as a CUDA
graph keeps its kernels, and runs no Python of the step again. ``tests/gpu`` has the same on a GPU.
"""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from woodshed.engine import graphs
from woodshed.engine.graphs import DecodeGraphs
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.mtp import MtpHead

from .models import DENSE, MOE, clone_state, decoder, run, running, worst_gap
from .test_ends import LENGTH, POLICY, ROWS, filled_cache, step

RECORDED: list[int] = []


def trace(compute):
    """Operators of one call, for another call."""
    RECORDED.append(1)
    return make_fx(compute)()


@pytest.fixture(scope="module")
def recorded():
    """A cache, and its steps, recorded for all rows at lengths that no example has."""
    cache = filled_cache([1] * ROWS)
    steps = DecodeGraphs(POLICY, cache, trace)
    with torch.no_grad():
        assert steps.decode(np.arange(ROWS)) is not None
    return cache, steps


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(2, LENGTH - 1), min_size=ROWS, max_size=ROWS),
    others=st.sets(st.sampled_from(range(ROWS - 1)), min_size=1),
)
def test_a_replayed_step_gives_what_the_decoder_gives(recorded, lengths, others):
    cache, steps = recorded
    plain, rows = filled_cache(lengths), np.array(sorted({*others, ROWS - 1}))
    for mine, other in zip((*cache.keys, *cache.values), (*plain.keys, *plain.values)):
        mine.copy_(other)
    cache.tokens[:], cache.lengths[:] = plain.tokens, plain.lengths
    before = len(RECORDED)
    with torch.no_grad():
        got = steps.decode(rows)
    assert len(RECORDED) == before
    assert got is not None and torch.allclose(got, step(plain, rows.tolist(), [], None), atol=1e-4)
    for mine, other in zip((*cache.keys, *cache.values), (*plain.keys, *plain.values)):
        assert torch.allclose(mine, other, atol=1e-5)


def test_other_memory_is_recorded_anew():
    rows = np.arange(8)
    cache, plain = filled_cache([5] * 8, 16), filled_cache([5] * 8, 16)
    steps = DecodeGraphs(POLICY, cache, trace)
    with torch.no_grad():
        steps.decode(rows)
        assert cache.acquire(None, LENGTH) == 8 and cache.rows == 16
        step(plain, rows.tolist(), [], None)
        cache.lengths[rows] = plain.lengths[rows] = 6
        got = steps.decode(rows)
    assert got is not None and torch.allclose(got, step(plain, rows.tolist(), [], None), atol=1e-4)
    assert torch.allclose(cache.keys[1][:8], plain.keys[1], atol=1e-5)


def test_few_rows_among_many_are_left_to_the_decoder():
    cache = filled_cache([3] * ROWS)
    held = [buffer.clone() for buffer in cache.keys]
    assert DecodeGraphs(POLICY, cache, trace).decode(np.array([ROWS - 1])) is None
    assert all(torch.equal(a, b) for a, b in zip(cache.keys, held))


def test_sizes_waste_little_and_are_few():
    lengths = [graphs._length(count) for count in range(1, 32769)]
    assert all(count <= length for count, length in enumerate(lengths, 1))
    assert all(length <= 1.25 * count for count, length in enumerate(lengths, 1) if count > 1024)
    assert len(set(lengths)) == 4 + 4 * 5


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As if this were one, but for what records."""
    monkeypatch.setattr(graphs, "why_not", lambda decoder, drafts: None)
    monkeypatch.setattr(graphs, "record_on_gpu", trace)
    RECORDED.clear()


async def replies(use_graphs: bool):
    """Three trajectories of two turns; between the turns the cache grows and the weights change."""
    policy = decoder()
    prompts = [[5, 9, 11], [7, 2], [1, 2, 3, 4]]
    said = []
    async with running(policy, graphs=use_graphs, length_step=16) as engine:
        for turn, limit in enumerate((6, 40)):
            samplings = [Sampling(max_tokens=limit + i, seed=10 * turn + i) for i in range(3)]
            got = await asyncio.gather(
                *(engine.generate(p, s, session=str(i)) for i, (p, s) in enumerate(zip(prompts, samplings)))
            )
            for prompt, reply in zip(prompts, got):
                assert worst_gap(policy, prompt, reply.tokens, reply.logprobs) < 1e-4
                said.append(reply.tokens)
                prompt += [*reply.tokens, 3]
            await engine.update_weights(turn + 1, clone_state(decoder(seed=turn + 1)), kv="recompute")
    return said


def test_an_engine_with_graphs_gives_what_one_without_gives(on_a_gpu):
    expected = run(replies(False))
    assert not RECORDED
    assert run(replies(True)) == expected
    assert len(RECORDED) >= 2  # the cache has grown


@pytest.mark.parametrize(
    "config, head, reason",
    [
        (DENSE, False, "computes on cpu: graphs need a GPU"),
        (MOE, False, "has experts"),
        (DENSE, True, "head drafts"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_the_reason(config, head, reason):
    policy = decoder(config)
    with pytest.raises(ValueError, match=f"engine.graphs is true, but .*{reason}"):
        LocalEngine(policy, settings=EngineSettings(graphs=True), mtp=MtpHead(config, seed=0) if head else None)
