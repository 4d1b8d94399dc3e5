"""The supervised loop: it learns, and a process killed in the middle continues to bitwise the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.stages.examples import Example
from woodshed.stages.supervised import train_on

CONFIG = DecoderConfig(
    vocab_size=31, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24, max_positions=64
)


class Killed(Exception):
    pass


def patterns(count: int) -> list[Example]:
    """Sequences that count upwards, so that there is something to learn."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 31, count)
    tokens = [((start + np.arange(int(rng.integers(6, 20)))) % 31).astype(np.int32) for start in starts]
    return [Example(t, np.r_[0, np.ones(len(t) - 1)].astype(np.float32)) for t in tokens]


def train(folder: Path, decoder: Decoder, die_at: int = 0) -> dict[str, float]:
    def progress(done: int, total: int, loss: float) -> None:
        if done == die_at:
            raise Killed

    return train_on(
        decoder,
        patterns(600),
        batch_tokens=64,
        epochs=1,
        seed=3,
        matrix_lr=0.02,
        other_lr=3e-3,
        floor=0.1,
        metrics=folder / "m.jsonl",
        checkpoints=folder / "checkpoints",
        progress=progress,
        checkpoint_seconds=0,
        progress_seconds=0,
    )


def test_a_killed_stage_continues_to_the_same_weights(tmp_path: Path) -> None:
    whole, cut = Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=1)
    figures = train(tmp_path / "whole", whole)
    with pytest.raises(Killed):
        train(tmp_path / "cut", cut, die_at=20)
    cut = Decoder(CONFIG, seed=1)
    continued = train(tmp_path / "cut", cut)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, cut.state_dict()[name]), name
    assert continued["loss"] == figures["loss"] < 2.9 and continued["tokens"] == figures["tokens"]
    lines = [(tmp_path / kind / "m.jsonl").read_text() for kind in ("whole", "cut")]
    assert lines[0] == lines[1]
    assert [json.loads(line)["step"] for line in lines[1].splitlines()] == list(range(1, int(figures["steps"]) + 1))
    assert not (tmp_path / "cut" / "checkpoints").exists()
