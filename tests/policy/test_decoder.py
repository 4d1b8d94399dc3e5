"""The decoder by itself: caching, recomputation, initial weights, rotary tables."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.config import ConfigError, DecoderConfig
from woodshed.policy.decoder import AttentionFn, Decoder, causal_attend
from woodshed.policy.layers import inverse_frequencies, rope_table
from woodshed.policy.operators import rotate

DENSE = DecoderConfig(
    vocab_size=120, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48, max_positions=64
)
MOE = replace(DENSE, family="qwen3_moe", num_experts=5, num_experts_per_tok=2, moe_d_ff=16)


def rows(config: DecoderConfig, batch: int, length: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    return tokens, torch.arange(length).expand(batch, length)


def cached_attend(keys: list[Tensor], values: list[Tensor], positions: Tensor) -> AttentionFn:
    """One sequence with tokens [N]: appends to a cache per layer and attends by explicit softmax."""

    def attention_fn(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys[layer], values[layer] = torch.cat((keys[layer], k)), torch.cat((values[layer], v))
        group = q.shape[1] // k.shape[1]
        k_all, v_all = keys[layer].repeat_interleave(group, 1), values[layer].repeat_interleave(group, 1)
        scores = torch.einsum("nhe,mhe->hnm", q, k_all) / math.sqrt(q.shape[-1])
        future = torch.arange(k_all.shape[0])[None, :] > positions[:, None]
        return torch.einsum("hnm,mhe->nhe", scores.masked_fill(future, -math.inf).softmax(-1), v_all)

    return attention_fn


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_flat_tokens_with_a_cache_equal_the_padded_batch(config: DecoderConfig) -> None:
    decoder = Decoder(config, seed=1)
    tokens, positions = rows(config, 1, 20)
    with torch.no_grad():
        whole = decoder.logits(decoder(tokens, positions, causal_attend()))[0]
        empty = torch.zeros(0, config.num_kv_heads, config.head_dim)
        keys, values = [empty] * config.num_layers, [empty] * config.num_layers
        parts = []
        for start, end in ((0, 11), (11, 12), (12, 19), (19, 20)):
            span = torch.arange(start, end)
            parts.append(decoder.logits(decoder(tokens[0, span], span, cached_attend(keys, values, span))))
    assert (torch.cat(parts) - whole).abs().max() < 1e-5


def test_hidden_states_of_some_positions_alone() -> None:
    decoder = Decoder(DENSE, seed=1)
    tokens, positions = rows(DENSE, 1, 20)
    ends = torch.tensor([19, 3, 7])

    def attention_fn(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert len(q) == (3 if layer == DENSE.num_layers - 1 else 20) and len(k) == len(v) == 20
        at = ends if len(q) == 3 else positions[0]
        empty = [k.new_zeros(0, *k.shape[1:])] * DENSE.num_layers
        return cached_attend(empty, list(empty), at)(layer, q, k, v)

    with torch.no_grad():
        whole = decoder(tokens, positions, causal_attend())[0]
        some = decoder(tokens[0], positions[0], attention_fn, ends=ends)
        with pytest.raises(ValueError, match="ends cannot be combined with route_sink"):
            decoder(tokens[0], positions[0], attention_fn, ends=ends, route_sink=[])
    assert some.shape == (3, DENSE.d_model) and (some - whole[ends]).abs().max() < 1e-5


def test_causal_attention_ignores_what_follows() -> None:
    decoder = Decoder(DENSE, seed=1)
    tokens, positions = rows(DENSE, 2, 16)
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % DENSE.vocab_size
    with torch.no_grad():
        a, b = (decoder(t, positions, causal_attend()) for t in (tokens, changed))
    assert torch.allclose(a[:, :10], b[:, :10], atol=1e-6) and not torch.allclose(a[:, 10:], b[:, 10:], atol=1e-3)


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_recompute_gives_the_same_gradients(config: DecoderConfig) -> None:
    decoder = Decoder(config, seed=1)
    tokens, positions = rows(config, 2, 12)
    grads = []
    for recompute in (False, True):
        decoder.zero_grad()
        decoder.recompute = recompute
        sink: list[Tensor] = []
        logits = decoder.logits(decoder(tokens, positions, causal_attend(), route_sink=sink))
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        assert len(sink) == config.num_layers
        grads.append([p.grad.clone() for p in decoder.parameters() if p.grad is not None])
    assert len(grads[0]) == len(list(decoder.parameters()))
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_it_learns_a_repeating_sequence() -> None:
    decoder = Decoder(MOE, seed=1)
    tokens = torch.arange(24).remainder(6).expand(4, 24)
    positions = torch.arange(24).expand(4, 24)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    for _ in range(40):
        logits = decoder.logits(decoder(tokens, positions, causal_attend()))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_initial_weights() -> None:
    config = replace(DENSE, vocab_size=2000, d_model=128, head_dim=32, d_ff=352, num_layers=4)
    decoder = Decoder(config, seed=4)
    tokens, positions = rows(config, 4, 64)
    with torch.no_grad():
        logits = decoder.logits(decoder(tokens, positions, causal_attend()))
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - math.log(config.vocab_size)) < 0.1
    layer = decoder.layers[0]
    assert layer.qkv.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert layer.down.std().item() == pytest.approx(352**-0.5 / math.sqrt(8), rel=0.02)
    again, other = Decoder(config, seed=4), Decoder(config, seed=5)
    assert torch.equal(again.embed, decoder.embed) and not torch.equal(other.embed, decoder.embed)
    assert decoder.num_parameters == sum(p.numel() for p in decoder.parameters())
    assert decoder.head_weight is decoder.embed


def test_bfloat16_logits_are_float32() -> None:
    decoder = Decoder(DENSE, seed=1)
    low = Decoder(DENSE, seed=1, dtype=torch.bfloat16)
    tokens, positions = rows(DENSE, 1, 16)
    with torch.no_grad():
        a = decoder.logits(decoder(tokens, positions, causal_attend()))
        b = low.logits(low(tokens, positions, causal_attend()))
    assert b.dtype == torch.float32 and low.dtype == torch.bfloat16
    assert 0 < (a - b).abs().max() < 0.05


def test_rotation_is_a_complex_product() -> None:
    table = rope_table(DENSE, torch.device("cpu"), torch.float64)
    x = torch.randn(64, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos, signed_sin = table[:, None].chunk(2, -1)
    turned = rotate(x, cos, signed_sin)
    angle = torch.arange(64)[:, None, None] * 10_000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    assert torch.allclose(turned, torch.cat((expected.real, expected.imag), -1), atol=1e-9)
    assert torch.allclose(inverse_frequencies(DENSE), angle[1, 0])


def test_positions_and_tokens_out_of_range() -> None:
    decoder = Decoder(DENSE, seed=1)
    for token, position in ((DENSE.vocab_size, 0), (0, DENSE.max_positions)):
        with pytest.raises(IndexError):
            decoder(torch.tensor([[token]]), torch.tensor([[position]]), causal_attend())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "head_dim"),
        ({"qk_norm": False}, "qk_norm"),
        ({"num_experts": 4}, "num_experts"),
        ({"d_ff": 0}, "d_ff"),
    ],
)
def test_impossible_configurations(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(DENSE, **change)
