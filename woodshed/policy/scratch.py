"""A policy from scratch: a tokenizer trained on the given texts and a decoder with initial weights."""

from __future__ import annotations

from collections.abc import Iterable

from .config import DecoderConfig
from .decoder import Decoder
from .formats import get_format
from .hf import Policy
from .settings import PolicySettings
from .tokenizer import Tokenizer, train_bpe


def decoder_config(settings: PolicySettings, vocab_size: int) -> DecoderConfig:
    """Return the decoder's configuration. Raises ConfigError if the settings contradict each other."""
    moe = settings.family == "qwen3_moe"
    return DecoderConfig(
        vocab_size=vocab_size,
        d_model=settings.d_model,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        head_dim=settings.d_model // settings.num_heads,
        d_ff=settings.d_ff,
        family=settings.family,
        max_positions=settings.max_positions,
        rope_theta=settings.rope_theta,
        qk_norm=settings.family != "llama",
        num_experts=settings.num_experts if moe else 0,
        num_experts_per_tok=settings.num_experts_per_tok if moe else 0,
        moe_d_ff=settings.moe_d_ff if moe else 0,
    )


def new_policy(settings: PolicySettings, texts: Iterable[str]) -> Policy:
    """Create version 0 of a policy, float32 on the CPU; ``texts`` train the tokenizer.

    The vocabulary has at most ``settings.vocab_size`` entries, fewer if ``texts`` yield fewer.
    """
    chat = get_format("compact" if settings.format == "auto" else settings.format)
    tokenizer = Tokenizer(train_bpe(texts, settings.vocab_size, chat.special_tokens))
    config = decoder_config(settings, tokenizer.vocab_size)
    return Policy(Decoder(config, seed=settings.seed), tokenizer, chat, config)
