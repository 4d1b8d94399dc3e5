"""Small random policies and an independent reference: one full forward without any cache."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from woodshed.engine.cache import RowCache
from woodshed.engine.local import LocalEngine
from woodshed.engine.native.kernels import STEP
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.native.build import NoKernels, library
from woodshed.policy.state import hf_state

DENSE = DecoderConfig(
    vocab_size=97, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48, max_positions=256
)
MOE = DecoderConfig(
    vocab_size=97, d_model=32, num_layers=3, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=48, max_positions=256,
    family="qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_d_ff=24, mlp_only_layers=(1,),
)  # fmt: skip


def _without_kernels() -> str:
    try:
        library(STEP)
    except NoKernels as why:
        return str(why)
    return ""


needs_kernels = pytest.mark.skipif(bool(_without_kernels()), reason=_without_kernels() or "kernels are there")


def decoder(config: DecoderConfig = DENSE, seed: int = 0, sharpness: float = 25.0) -> Decoder:
    """A random policy whose distributions are far from uniform, so that a mistake shows."""
    made = Decoder(config, seed=seed)
    with torch.no_grad():
        made.norm.mul_(sharpness)
    return made


def slow(policy: Decoder, seconds: float = 0.004, until: threading.Event | None = None) -> Decoder:
    """The same, whose steps take so long that something can be done between two of them; ``until``: then no more.

    Only for engines that compute with torch's operators: their own kernels do not call ``forward``."""
    forward, over = policy.forward, until or threading.Event()

    def slowly(*args: Any, **kwargs: Any) -> torch.Tensor:
        over.wait(seconds)
        return forward(*args, **kwargs)

    policy.forward = slowly  # type: ignore[method-assign]
    return policy


def clone_state(policy: Decoder) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in hf_state(policy).items()}


def filled_cache(
    config: DecoderConfig,
    lengths: list[int],
    *,
    length: int,
    max_rows: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> RowCache:
    """A cache of ``len(lengths)`` rows that hold random tokens, keys and values."""
    cache = RowCache(
        layers=config.num_layers,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=torch.device("cpu"),
        budget=1 << 28,
        max_rows=max_rows or len(lengths),
        step=length,
    )
    for _ in lengths:
        cache.acquire(None, length)
    rng = torch.Generator().manual_seed(1)
    for buffer in (*cache.keys, *cache.values):
        buffer.copy_(torch.randn(buffer.shape, generator=rng))
    cache.tokens[:] = np.random.default_rng(0).integers(config.vocab_size, size=cache.tokens.shape)
    cache.lengths[:] = lengths
    return cache


def full_logprobs(policy: Decoder, tokens: list[int]) -> torch.Tensor:
    """float32 ``[T, V]``: log-probabilities of the next token after every position."""
    with torch.no_grad():
        ids = torch.tensor([tokens], device=policy.device)
        hidden = policy.forward(ids, torch.arange(len(tokens), device=policy.device)[None], causal_attend())
        return policy.logits(hidden)[0].log_softmax(-1).cpu()


def worst_gap(policy: Decoder, prompt: list[int], tokens: list[int], logprobs: list[float]) -> float:
    """Largest difference between the given log-probabilities and those of a full forward."""
    reference = full_logprobs(policy, prompt + tokens)
    wanted = reference[torch.arange(len(prompt) - 1, len(prompt) + len(tokens) - 1), torch.tensor(tokens)]
    return float((wanted - torch.tensor(logprobs)).abs().max())


def prompt(length: int, seed: int = 0, vocabulary: int = 97) -> list[int]:
    return torch.randint(0, vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@asynccontextmanager
async def running(policy: Decoder, version: int = 0, device: str = "cpu", **settings: Any):
    engine = LocalEngine(policy, settings=EngineSettings(**settings), device=device, version=version)
    try:
        yield engine
    finally:
        await engine.close()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)
