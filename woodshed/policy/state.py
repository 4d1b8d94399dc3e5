"""Views of the decoder's weights under their canonical Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .config import ConfigError
from .decoder import Decoder
from .layers import Layer


def hf_state(decoder: Decoder) -> dict[str, Tensor]:
    """Map Hugging Face names to tensors, one per expert and projection; a tied head is left out.

    The tensors are detached *views* into the decoder (fused matrices are sliced by rows): they follow its training.
    Clone tensors that must not change.
    """
    return dict(_views(decoder))


@torch.no_grad()
def load_hf_state(decoder: Decoder, state: Mapping[str, Tensor], *, name: str = "state") -> None:
    """Copy ``state`` into the decoder's own tensors, converting dtype and device.

    Names and shapes must match exactly (rotary buffers are ignored, and so is ``lm_head.weight`` of a tied model if it
    equals the embedding). Everything is checked before the first tensor is written, so a bad state leaves the decoder
    as it was. Raises ConfigError.
    """
    views = hf_state(decoder)
    ignored = {"lm_head.weight"} if decoder.head is None else set()
    given = {n for n in state if n not in ignored and not n.endswith(".rotary_emb.inv_freq")}
    for title, names in (("lacks", sorted(views.keys() - given)), ("has unknown", sorted(given - views.keys()))):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(f"{name}: {title} {', '.join(names[:3])}{more}; check config.json against the weights")
    for key, view in views.items():
        if state[key].shape != view.shape:
            raise ConfigError(f"{name}: {key} has shape {list(state[key].shape)}, expected {list(view.shape)}")
    head = state.get("lm_head.weight")
    if decoder.head is None and head is not None and not torch.equal(head, state["model.embed_tokens.weight"]):
        raise ConfigError(f"{name}: lm_head.weight differs from the embedding, but tie_word_embeddings is true")
    for key, view in views.items():
        view.copy_(state[key])


def _views(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    yield "model.embed_tokens.weight", decoder.embed.detach()
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        for name, tensor in layer_views(layer):
            yield f"model.layers.{i}.{name}", tensor.detach()
    yield "model.norm.weight", decoder.norm.detach()
    if decoder.head is not None:
        yield "lm_head.weight", decoder.head.detach()


def layer_views(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Yield one layer's tensors, one per projection, under Hugging Face's names within the layer."""
    q = layer.heads * layer.head_dim
    k = q + layer.kv_heads * layer.head_dim
    yield "input_layernorm.weight", layer.attn_norm
    for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if fused is not None:
            yield f"self_attn.q_proj.{kind}", fused[:q]
            yield f"self_attn.k_proj.{kind}", fused[q:k]
            yield f"self_attn.v_proj.{kind}", fused[k:]
    yield "self_attn.o_proj.weight", layer.out
    if layer.out_bias is not None:
        yield "self_attn.o_proj.bias", layer.out_bias
    if layer.q_norm is not None and layer.k_norm is not None:
        yield "self_attn.q_norm.weight", layer.q_norm
        yield "self_attn.k_norm.weight", layer.k_norm
    yield "post_attention_layernorm.weight", layer.mlp_norm
    if layer.experts is None:
        yield from _swiglu("mlp", layer.gate_up, layer.down)
        return
    yield "mlp.gate.weight", layer.experts.router
    for e in range(layer.experts.router.shape[0]):
        yield from _swiglu(f"mlp.experts.{e}", layer.experts.gate_up[e], layer.experts.down[e])


def _swiglu(prefix: str, gate_up: Tensor, down: Tensor) -> Iterator[tuple[str, Tensor]]:
    hidden = down.shape[-1]
    yield f"{prefix}.gate_proj.weight", gate_up[:hidden]
    yield f"{prefix}.up_proj.weight", gate_up[hidden:]
    yield f"{prefix}.down_proj.weight", down
