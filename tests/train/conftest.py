"""A tiny decoder and random batches, shared by the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.train.batch import Sequence, TrainBatch, pack

CONFIG = DecoderConfig(
    vocab_size=61, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, d_ff=24, max_positions=64
)
MOE = DecoderConfig(
    vocab_size=61, d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24, max_positions=64,
    family="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_d_ff=8,
)  # fmt: skip

MakeBatch = Callable[..., TrainBatch]


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(CONFIG, seed=1)


@pytest.fixture
def make_batch() -> MakeBatch:
    def make(
        seed: int = 0,
        sizes: tuple[int, ...] = (9, 3, 17, 12, 5),
        parts: tuple[str, ...] = ("rl", "ce", "ref_kl"),
        step: int = 1,
        spread: float = 0.3,
    ) -> TrainBatch:
        rng = np.random.default_rng(seed)
        rows = []
        for i, size in enumerate(sizes):
            sampled = rng.random(size) < 0.5
            sampled[0] = False
            behaviour = np.where(sampled, -np.log(61) + spread * rng.standard_normal(size), np.nan)
            weights = {}
            for part in parts:
                mask = sampled if part != "ce" else np.arange(size) > 0
                weights[part] = np.where(mask, rng.standard_normal(size), 0).astype(np.float32)
            rows.append(
                Sequence(
                    rng.integers(0, 61, size).astype(np.int32),
                    weights,
                    behaviour.astype(np.float32),
                    (behaviour + 0.1 * rng.standard_normal(size)).astype(np.float32),
                    np.where(sampled, max(0, step - 1), -1).astype(np.int32),
                    trajectory=f"t{i}",
                )
            )
        denominators = {part: 10.0 * (i + 1) for i, part in enumerate(parts)}
        return pack(rows, id=f"b{step}", step=step, denominators=denominators)

    return make
