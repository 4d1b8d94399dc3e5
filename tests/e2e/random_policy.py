"""A policy that a run has at once, where it does not matter what the policy knows."""

from __future__ import annotations

from pathlib import Path

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe


def random_policy(folder: Path, chat: ChatFormat) -> Path:
    """A tiny policy with random weights, as a Hugging Face directory."""
    tokenizer = Tokenizer(train_bpe(["def f(x): return x"], 300, chat.special_tokens))
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=48,
        max_positions=4096,
    )
    return save_policy(Policy(Decoder(config, seed=0), tokenizer, chat, config), folder)
