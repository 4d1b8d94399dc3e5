"""Trainer shards to canonical tensors to engine shards, bit for bit, against slices written by hand."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.weights.chain import Publisher
from woodshed.weights.errors import ChainError
from woodshed.weights.follow import Follower
from woodshed.weights.image import Image, assemble, take
from woodshed.weights.layout import Layout, decoder_layout, join, needs, split
from woodshed.weights.shards import Region, Shard
from woodshed.weights.tensor_parallel import local_shape, tensor_parallel

from .states import raw

CONFIGS = {
    "tied, grouped heads": DecoderConfig(64, 32, 2, 4, 2, 8, 48, "llama", qk_norm=False),
    "untied, biases": DecoderConfig(
        64, 32, 2, 4, 4, 8, 48, "qwen2", qk_norm=False, qkv_bias=True, tie_embeddings=False
    ),
    "experts": DecoderConfig(
        64, 32, 2, 4, 2, 8, 48, "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_d_ff=16, mlp_only_layers=(0,),
        tie_embeddings=False,
    ),
}  # fmt: skip


def decoder_of(name: str) -> Decoder:
    decoder = Decoder(CONFIGS[name], seed=3, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in decoder.parameters():  # No value twice in a row: a shifted copy would show.
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    return decoder


def cut(name: str, parameter: Tensor, axis: int, bounds: list[int]) -> list[dict[str, Tensor | Shard]]:
    """Each rank's shard of a parameter that is cut at ``bounds``."""
    edges = [0, *bounds, parameter.shape[axis]]
    out = []
    for a, b in itertools.pairwise(edges):
        tensor = parameter.detach().narrow(axis, a, b - a)
        start = tuple(a if i == axis else 0 for i in range(parameter.dim()))
        out.append({name: Shard(tensor, Region(tuple(parameter.shape), start, tuple(tensor.shape)))})
    return out


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(CONFIGS)))
def test_any_cut_of_the_trainer_makes_the_same_canonical_tensors(seed: int, name: str) -> None:
    decoder, rng = decoder_of(name), random.Random(seed)
    layout: Layout = decoder_layout(decoder)
    image: Image = {}
    for local, parameter in decoder.named_parameters():
        axis = rng.randrange(parameter.dim())
        bounds = sorted(rng.sample(range(1, parameter.shape[axis]), rng.randrange(4)))
        for held in cut(local, parameter, axis, bounds):
            image |= take(split(held, layout))
    assert raw(assemble(image)) == raw(hf_state(decoder))
    engine = Decoder(CONFIGS[name], seed=9, dtype=torch.bfloat16)
    join(image.values(), layout, dict(engine.named_parameters()))
    assert raw(hf_state(engine)) == raw(hf_state(decoder))


def test_what_every_rank_holds_whole_stays_plain() -> None:
    decoder = decoder_of("experts")
    state = split({k: v.detach() for k, v in decoder.named_parameters()}, decoder_layout(decoder))
    assert raw(state) == raw(hf_state(decoder)) and all(isinstance(v, Tensor) for v in state.values())


def by_hand(state: dict[str, Tensor], config: DecoderConfig, rank: int, size: int) -> dict[str, Tensor]:
    """The shard of a rank, by explicit slices."""

    def rows(name: str, parts: int = size, part: int = rank) -> Tensor:
        return state[name].chunk(parts, 0)[part]

    kv = min(size, config.num_kv_heads)
    out = {"embed": rows("model.embed_tokens.weight"), "norm": state["model.norm.weight"]}
    if not config.tie_embeddings:
        out["head"] = rows("lm_head.weight")
    for i in range(config.num_layers):
        at, to = f"model.layers.{i}.", f"layers.{i}."
        for kind, local in (("weight", "qkv"), ("bias", "qkv_bias")):
            if f"{at}self_attn.q_proj.{kind}" in state:
                q = rows(f"{at}self_attn.q_proj.{kind}")
                k, v = (rows(f"{at}self_attn.{x}_proj.{kind}", kv, rank * kv // size) for x in "kv")
                out[to + local] = torch.cat([q, k, v])
        out[to + "out"] = state[f"{at}self_attn.o_proj.weight"].chunk(size, 1)[rank]
        out[to + "attn_norm"] = state[f"{at}input_layernorm.weight"]
        out[to + "mlp_norm"] = state[f"{at}post_attention_layernorm.weight"]
        if config.qk_norm:
            out |= {to + f"{x}_norm": state[f"{at}self_attn.{x}_norm.weight"] for x in "qk"}
        names = [f"{at}mlp."]
        if config.is_moe(i):
            out[to + "experts.router"] = state[f"{at}mlp.gate.weight"]
            names = [f"{at}mlp.experts.{e}." for e in range(config.num_experts)]
        gate_up = [torch.cat([rows(n + "gate_proj.weight"), rows(n + "up_proj.weight")]) for n in names]
        down = [state[n + "down_proj.weight"].chunk(size, 1)[rank] for n in names]
        moe = config.is_moe(i)
        out[to + ("experts.gate_up" if moe else "gate_up")] = torch.stack(gate_up) if moe else gate_up[0]
        out[to + ("experts.down" if moe else "down")] = torch.stack(down) if moe else down[0]
    return out


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_engine_ranks_get_their_share(tmp_path: Path, name: str, size: int) -> None:
    """From a trainer cut three ways, through a chain, to each rank of a tensor-parallel engine."""
    decoder, config = decoder_of(name), CONFIGS[name]
    layout, state = decoder_layout(decoder), {}
    for local, parameter in decoder.named_parameters():
        state |= split(cut(local, parameter, 0, [])[0], layout)
    Publisher(tmp_path, part_bytes=4096, fsync=False).publish(0, state)
    for rank in range(size):
        share = tensor_parallel(layout, config, rank, size)
        follower = Follower(tmp_path, wanted=needs(share))
        assert follower.advance() == 0 and follower.image is not None
        tensors = {k: torch.full(local_shape(slots), torch.nan, dtype=torch.bfloat16) for k, slots in share.items()}
        join(follower.image.values(), share, tensors)
        assert raw(tensors) == raw(by_hand(hf_state(decoder), config, rank, size))


def test_a_reader_of_one_layer_decodes_only_that(tmp_path: Path) -> None:
    decoder = decoder_of("experts")
    Publisher(tmp_path, fsync=False).publish(0, hf_state(decoder))
    layer: Layout = {k: v for k, v in decoder_layout(decoder).items() if k.startswith("layers.1.")}
    follower = Follower(tmp_path, wanted=needs(layer))
    follower.advance()
    assert follower.image is not None and all(key.startswith("model.layers.1.") for key in follower.image)
    tensors = {k: torch.zeros_like(p) for k, p in decoder.named_parameters() if k in layer}
    join(follower.image.values(), layer, tensors)
    assert raw(tensors) == raw({k: p.detach() for k, p in decoder.named_parameters() if k in layer})


def test_a_tied_head_can_be_a_tensor_of_the_engine() -> None:
    decoder = decoder_of("tied, grouped heads")
    layout = decoder_layout(decoder)
    layout["head"] = layout["embed"]
    tensors = {k: torch.zeros_like(p) for k, p in decoder.named_parameters()} | {"head": torch.zeros(64, 32).bfloat16()}
    join(take(hf_state(decoder)).values(), layout, tensors)
    assert torch.equal(tensors["head"], decoder.embed) and tensors["head"].data_ptr() != tensors["embed"].data_ptr()


def test_what_is_missing_or_does_not_fit_is_named_before_anything_is_written() -> None:
    decoder = decoder_of("experts")
    layout, pieces = decoder_layout(decoder), take(hf_state(decoder))
    tensors = {k: torch.zeros_like(p) for k, p in decoder.named_parameters()}
    lacking = [p for p in pieces.values() if ".experts.2.up_proj" not in p.name]
    with pytest.raises(ChainError, match=r"layers\.1\.experts\.gate_up: 512 of 4096 elements"):
        join(lacking, layout, tensors)
    wrong = take({"model.norm.weight": torch.ones(8)})
    with pytest.raises(ChainError, match=r"model\.norm\.weight: published as \(8,\), expected \(32,\)"):
        join((pieces | wrong).values(), layout, tensors)
    assert not any(t.any() for t in tensors.values())
    with pytest.raises(ChainError, match="bogus: not in the layout"):
        split({"bogus": torch.ones(1)}, layout)
    with pytest.raises(ValueError, match="4 cannot be divided evenly among 3"):
        tensor_parallel(layout, CONFIGS["experts"], 0, 3)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        tensor_parallel(layout, CONFIGS["experts"], 2, 2)


def test_load_hf_state_and_join_agree() -> None:
    decoder = decoder_of("untied, biases")
    one, other = (Decoder(decoder.config, seed=s) for s in (1, 2))
    load_hf_state(one, hf_state(decoder))
    join(take(hf_state(decoder)).values(), decoder_layout(other), dict(other.named_parameters()))
    assert raw(hf_state(one)) == raw(hf_state(other))
