"""The policies that are measured, and what each is asked for."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.hf import load_policy
from woodshed.policy.smollm2 import prepare_smollm2
from woodshed.policy.state import hf_state

CACHE = Path("~/.cache/woodshed").expanduser()


@dataclass(frozen=True)
class Load:
    """Work for one size of policy: ``concurrent`` prompts of ``prompt`` tokens with ``output`` sampled tokens each;
    ``trajectories`` of ``turns``, of which the first has ``first`` tokens, each ``reply`` sampled and ``observed``
    read. ``runs`` of both. The table has prompts of ``table_prompt`` and ``table_output`` tokens, ``rounds`` times for
    each of its batch sizes."""

    runs: int
    trajectories: int
    table_prompt: int
    table_output: int
    rounds: tuple[int, ...]
    concurrent: int = 32
    prompt: int = 512
    output: int = 64
    turns: int = 8
    first: int = 128
    reply: int = 24
    observed: int = 32


SMALL = Load(runs=3, trajectories=32, table_prompt=192, table_output=48, rounds=(3, 3, 3))
LARGE = Load(runs=3, trajectories=8, table_prompt=48, table_output=16, rounds=(3, 3, 2))
LOADS = {"1M": SMALL, "10M": SMALL, "135M": LARGE}
CONFIGS = {
    "1M": DecoderConfig(
        vocab_size=1280, d_model=128, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=32, d_ff=384,
        max_positions=1024,
    ),
    "10M": DecoderConfig(
        vocab_size=4096, d_model=256, num_layers=8, num_heads=4, num_kv_heads=2, head_dim=64, d_ff=1024,
        max_positions=1024,
    ),
}  # fmt: skip


def open_decoder(size: str) -> Decoder:
    """float32 weights: random for the small sizes (speed does not depend on them), SmolLM2-135M-Instruct for 135M."""
    if size in CONFIGS:
        return Decoder(CONFIGS[size], seed=0)
    return load_policy(prepare_smollm2(CACHE)).decoder


def save(decoder: Decoder, folder: Path) -> None:
    """``config.json`` and ``model.safetensors`` for a server that needs no tokenizer."""
    (folder / "config.json").write_text(json.dumps(decoder.config.to_hf()))
    state = {name: tensor.clone() for name, tensor in hf_state(decoder).items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random tokens, so that no two prompts share a prefix worth caching."""
    rng = random.Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
