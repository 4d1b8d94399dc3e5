"""The engine's own kernels compute what the decoder computes, and a token's bits do not depend on the batch."""

import asyncio
import itertools
import os
import stat

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.engine.attention import CausalMasks, Chunk, StepAttention, places
from woodshed.engine.cache import RowCache
from woodshed.engine.native import kernels as native
from woodshed.engine.native.kernels import STEP, Kernels
from woodshed.engine.protocol import Sampling
from woodshed.policy import processor
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.native import build

from .models import MOE, clone_state, decoder, filled_cache, needs_kernels, prompt, run, running, worst_gap

ROWS, LENGTH = 6, 600
SHAPES = {
    # 3 heads share keys, nothing is a multiple of a vector, no norms of heads
    "llama": DecoderConfig(
        vocab_size=101, d_model=42, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=14, d_ff=54,
        family="llama", qk_norm=False, max_positions=1024,
    ),
    # biases everywhere, an output matrix of its own
    "qwen2": DecoderConfig(
        vocab_size=150, d_model=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, d_ff=96, family="qwen2",
        qk_norm=False, qkv_bias=True, out_bias=True, tie_embeddings=False, max_positions=1024,
    ),
    # wider heads than a panel
    "qwen3": DecoderConfig(
        vocab_size=97, d_model=96, num_layers=3, num_heads=5, num_kv_heads=1, head_dim=80, d_ff=130, max_positions=1024,
    ),
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


def policy_of(shape: str, dtype: torch.dtype = torch.float32, sharpness: float = 1.0) -> Decoder:
    policy = Decoder(SHAPES[shape], seed=0).requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in policy.named_parameters():
        if name.endswith(("bias", "norm")):  # zeros and ones would hide what is left out
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    policy.norm.mul_(sharpness)
    return policy.to(dtype)


def cache_of(policy: Decoder, lengths: list[int]) -> RowCache:
    return filled_cache(policy.config, lengths, length=LENGTH, dtype=policy.dtype)


def by_torch(policy: Decoder, cache: RowCache, decoding: list[int], chunks: list[Chunk]) -> torch.Tensor:
    attention = StepAttention(
        cache, policy.config.num_heads, np.array(decoding, np.int64), chunks, CausalMasks(cache.device, cache.dtype)
    )
    tokens = torch.from_numpy(cache.tokens[attention.rows, attention.positions].astype(np.int64))
    with torch.inference_mode():
        return policy.forward(tokens, torch.from_numpy(attention.positions), attention)


def by_kernels(kernels: Kernels, cache: RowCache, decoding: list[int], chunks: list[Chunk], ends=None) -> torch.Tensor:
    rows, positions = places(cache, np.array(decoding, np.int64), chunks)
    with torch.inference_mode():
        return kernels.forward(cache, rows, positions, len(decoding), None if ends is None else np.array(ends))


@pytest.fixture(scope="module", params=itertools.product(SHAPES, DTYPES), ids=lambda p: f"{p[0]}-{str(p[1])[6:]}")
def computed(request):
    policy = policy_of(*request.param)
    return policy, Kernels(policy)


@st.composite
def steps(draw):
    """Lengths of the rows, those that decode, and chunks in any order; never nothing."""
    lengths = draw(st.lists(st.integers(0, 400), min_size=ROWS, max_size=ROWS))
    roles = draw(st.lists(st.sampled_from(["idle", "decode", "chunk"]), min_size=ROWS, max_size=ROWS).filter(any_busy))
    counts = draw(st.lists(st.one_of(st.integers(1, 9), st.integers(60, 190)), min_size=ROWS, max_size=ROWS))
    decoding = [row for row in range(ROWS) if roles[row] == "decode"]
    order = draw(st.permutations(range(ROWS)))
    return lengths, decoding, [Chunk(row, lengths[row], counts[row]) for row in order if roles[row] == "chunk"]


def any_busy(roles: list[str]) -> bool:
    return set(roles) != {"idle"}


@needs_kernels
@settings(deadline=None, max_examples=25)
@given(steps())
def test_a_step_gives_what_the_decoder_gives(computed, step):
    """In float32 to rounding; in bfloat16 as near to float32 as torch's operators are."""
    (policy, kernels), (lengths, decoding, chunks) = computed, step
    exact = Decoder(policy.config, seed=None)
    exact.load_state_dict(policy.state_dict())
    caches = [cache_of(policy, lengths) for _ in range(2)]
    full = cache_of(exact.requires_grad_(False), lengths)
    for mine, other in zip((*full.keys, *full.values), (*caches[0].keys, *caches[0].values)):
        mine.copy_(other)
    wanted = by_torch(exact, full, decoding, chunks)
    got, theirs = by_kernels(kernels, caches[0], decoding, chunks), by_torch(policy, caches[1], decoding, chunks)
    if policy.dtype == torch.float32:
        assert torch.allclose(got, wanted, atol=2e-4)
    else:
        assert (got - wanted).square().mean() <= 2 * (theirs.float() - wanted).square().mean()
    for mine, other in zip((*caches[0].keys, *caches[0].values), (*full.keys, *full.values)):
        assert torch.allclose(mine.float(), other, atol=1e-4 if policy.dtype == torch.float32 else 0.2)


@needs_kernels
@settings(deadline=None, max_examples=15)
@given(steps())
def test_bits_do_not_depend_on_the_batch(computed, step):
    """Neither on who else decodes or reads, nor on where a prompt is cut into chunks, nor on what is asked for."""
    (policy, kernels), (lengths, decoding, chunks) = computed, step
    together, alone, some = (cache_of(policy, lengths) for _ in range(3))
    got = by_kernels(kernels, together, decoding, chunks)
    parts = [by_kernels(kernels, alone, [row], []) for row in decoding]
    for chunk in chunks:
        first = 1 + chunk.count // 3
        parts.append(by_kernels(kernels, alone, [], [Chunk(chunk.row, chunk.start, first)]))
        if first < chunk.count:
            parts.append(by_kernels(kernels, alone, [], [Chunk(chunk.row, chunk.start + first, chunk.count - first)]))
    assert torch.equal(got, torch.cat(parts))
    for mine, other in zip((*together.keys, *together.values), (*alone.keys, *alone.values)):
        assert torch.equal(mine, other)
    lasts = list(np.cumsum([1] * len(decoding) + [chunk.count for chunk in chunks]) - 1)[::-1]
    assert torch.equal(by_kernels(kernels, some, decoding, chunks, lasts), got[lasts])


@needs_kernels
def test_logits(computed):
    policy, kernels = computed
    for rows in (1, 2, 7, 65):
        hidden = torch.randn(rows, policy.config.d_model, generator=torch.Generator().manual_seed(rows))
        rounded = hidden.to(policy.dtype).double()
        wanted = rounded @ policy.head_weight.double().T
        got = kernels.logits(hidden)
        assert got.dtype == torch.float32 and torch.allclose(got.double(), wanted, atol=1e-5)
        assert torch.equal(got[:1], kernels.logits(hidden[:1]))


@needs_kernels
def test_large_scores_and_far_tails():
    """Softmax and SwiGLU where e^x is tiny and where it is huge, against float64."""
    policy = policy_of("llama")
    with torch.no_grad():
        for layer in policy.layers:
            layer.qkv.mul_(60.0)
            layer.gate_up.mul_(40.0)
    cache, exact = cache_of(policy, [300] * ROWS), cache_of(policy.double(), [300] * ROWS)
    for mine, other in zip((*cache.keys, *cache.values), (*exact.keys, *exact.values)):
        mine.copy_(other)
    step = [0, 2], [Chunk(3, 300, 70)]
    wanted = by_torch(policy, exact, *step)
    cache.dtype = torch.float32
    for name in ("keys", "values"):
        setattr(cache, name, [buffer.float() for buffer in getattr(cache, name)])
    got = by_kernels(Kernels(policy.float()), cache, *step)
    assert torch.isfinite(got).all() and torch.allclose(got.double(), wanted, atol=2e-3)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_samples_with_them(dtype, threads, monkeypatch):
    """Many requests at once get the very tokens and log-probabilities that each gets alone, where no step is left to
    torch."""
    monkeypatch.setattr(native, "MOST_TOKENS_BESIDE_TILES", LENGTH)
    # the first comes as 64 tokens and then one; others of other lengths; samples of one prompt
    tokens = [prompt(65, seed=9)] + [prompt(5 + 9 * i, seed=i) for i in range(6)] + [prompt(70, seed=7)] * 4

    def asked(i: int) -> Sampling:
        return Sampling(max_tokens=20, seed=i, temperature=0.7 if i % 2 else 1.0)

    async def main():
        policy = policy_of("qwen3", sharpness=10)
        async with running(policy_of("qwen3", sharpness=10), dtype=dtype, threads=threads, prefill_tokens=64) as engine:
            assert engine.stats()["kernels"] == "native"
            many = await asyncio.gather(*(engine.generate(t, asked(i)) for i, t in enumerate(tokens)))
        async with running(policy_of("qwen3", sharpness=10), dtype=dtype, share_prefix=0) as engine:
            for i, (ask, one) in enumerate(zip(tokens, many)):
                alone = await engine.generate(ask, asked(i))
                assert (alone.tokens, alone.logprobs) == (one.tokens, one.logprobs)
                if asked(i).temperature == 1.0:
                    gap = worst_gap(policy, ask, one.tokens, one.logprobs)
                    assert gap < (1e-4 if dtype == "float32" else 0.3)

    run(main())


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_weights(dtype):
    async def main():
        async with running(decoder(), dtype=dtype, seed=3) as engine:
            for version in range(1, 3):
                policy = decoder(seed=version).to(getattr(torch, dtype))
                await engine.update_weights(version, clone_state(policy), kv="recompute")
                done = await engine.generate(prompt(20), Sampling(max_tokens=8))
                right = worst_gap(policy.float(), prompt(20), done.tokens, done.logprobs)
                assert right < 0.3 < worst_gap(decoder(seed=version - 1), prompt(20), done.tokens, done.logprobs)

    run(main())


@pytest.mark.parametrize(
    ("policy", "why"),
    [(decoder(MOE), "experts"), (decoder().half(), "float16"), (decoder().to("meta"), "meta")],
    ids=["experts", "float16", "another device"],
)
def test_what_they_do_not_compute(policy, why):
    assert why in (native.why_not(policy) or "")
    assert native.why_not(decoder()) is None


@needs_kernels
def test_where_the_processor_multiplies_tiles_large_steps_are_left_to_torch(monkeypatch):
    """As on a processor with AMX: the two take turns in one sequence."""
    monkeypatch.setattr(native, "has_flags", lambda *_: True)
    monkeypatch.setattr(native, "MOST_TOKENS_BESIDE_TILES", 4)
    counts = []

    class Counted(Kernels):
        def forward(self, cache, rows, *more):
            counts.append(len(rows))
            return super().forward(cache, rows, *more)

    monkeypatch.setattr(native, "Kernels", Counted)

    async def main():
        async with running(decoder(sharpness=3.0), dtype="bfloat16", seed=1) as engine:
            tokens = [prompt(30 + i, seed=i) for i in range(3)]
            done = await asyncio.gather(*(engine.generate(t, Sampling(max_tokens=12)) for t in tokens))
            for ask, one in zip(tokens, done):
                assert worst_gap(decoder(sharpness=3.0), ask, one.tokens, one.logprobs) < 0.1

    run(main())
    assert counts and max(counts) <= 3


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Nothing compiled yet."""
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "cache"))
    build._begun.cache_clear()
    yield tmp_path
    build._begun.cache_clear()


def fake_compiler(folder, body: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "there is no C++ compiler"),
        ("exit 3", "does not run"),
        ('[ "$1" = --version ] && exit 0; echo "no such flag" >&2; exit 1', "no such flag"),
        (
            '[ "$1" = --version ] && exit 0; while [ "$1" != -o ]; do shift; done; echo junk > "$2"',
            "cannot be written or loaded",
        ),
    ],
)
def test_without_kernels_torch_computes_and_the_reason_is_told(fresh, monkeypatch, body, why):
    if body is None:
        monkeypatch.setenv("PATH", str(fresh))
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", fake_compiler(fresh, body))

    async def main():
        async with running(decoder()) as engine:
            assert engine.stats()["kernels"].startswith("torch (") and why in engine.stats()["kernels"]
            done = await engine.generate(prompt(9), Sampling(max_tokens=5))
            assert worst_gap(decoder(), prompt(9), done.tokens, done.logprobs) < 1e-4

    run(main())


@needs_kernels
def test_a_cache_that_cannot_be_written(fresh):
    (fresh / "cache").write_text("a file where a folder should be")
    with pytest.raises(build.NoKernels, match="cannot be written"):
        build.library(STEP)


@needs_kernels
def test_the_clock_of_the_processor_is_no_reason_to_compile(fresh, monkeypatch):
    """/proc/cpuinfo says how fast it runs at the moment."""
    first = build._digest(STEP, build._compiler(), "")
    described = processor._described()
    monkeypatch.setattr(processor, "_described", lambda: {**described, "cpu MHz": "1.0"})
    assert build._digest(STEP, build._compiler(), "") == first
    monkeypatch.setattr(processor, "_described", lambda: {**described, "flags": "fpu"})
    assert build._digest(STEP, build._compiler(), "") != first


@needs_kernels
def test_compiled_once(fresh, monkeypatch):
    build.library(STEP, build.COMPILE_SECONDS)
    (made,) = (fresh / "cache" / "native").iterdir()
    before = made.stat()
    build._begun.cache_clear()
    monkeypatch.setattr(build, "_compiled", None)  # not called
    build.library(STEP)
    assert os.stat(made).st_mtime_ns == before.st_mtime_ns


@needs_kernels
def test_kernels_that_are_late_are_taken_up_when_they_are_there(fresh, monkeypatch):
    gate, compiler = fresh / "gate", build._compiler()
    body = f'[ "$1" = --version ] || while [ ! -e {gate} ]; do sleep 0.02; done; exec {compiler} "$@" -O0'
    monkeypatch.setenv("CXX", fake_compiler(fresh, body))
    monkeypatch.setattr(build, "PATIENCE", 0.1)
    policy, new = decoder(), decoder(seed=9)

    async def main():
        async with running(decoder()) as engine:
            assert "still being compiled" in engine.stats()["kernels"] and engine.stats()["native"] == 0
            gate.touch()
            while not engine.stats()["native"]:
                done = await engine.generate(prompt(9), Sampling(max_tokens=60))
                assert worst_gap(policy, prompt(9), done.tokens, done.logprobs) < 1e-4
            assert engine.stats()["kernels"] == "native"
            done = await engine.generate(prompt(9), Sampling(max_tokens=5))
            assert worst_gap(policy, prompt(9), done.tokens, done.logprobs) < 1e-4
            await engine.update_weights(1, clone_state(new))
            done = await engine.generate(prompt(9), Sampling(max_tokens=5))
            assert worst_gap(new, prompt(9), done.tokens, done.logprobs) < 1e-4

    run(main())


@needs_kernels
def test_an_engine_that_was_closed_does_not_mind_late_kernels(fresh, monkeypatch):
    gate, compiler = fresh / "gate", build._compiler()
    body = f'[ "$1" = --version ] || while [ ! -e {gate} ]; do sleep 0.02; done; exec {compiler} "$@" -O0'
    monkeypatch.setenv("CXX", fake_compiler(fresh, body))
    monkeypatch.setattr(build, "PATIENCE", 0.1)

    async def main():
        async with running(decoder()) as engine:
            assert engine.stats()["native"] == 0
        gate.touch()
        build.library(STEP, build.COMPILE_SECONDS)

    run(main())
