"""Reader of Llama-architecture GGUF files: dequantises the weights and rebuilds the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from torch import Tensor

from .config import ConfigError, DecoderConfig
from .decoder import Decoder
from .formats import get_format
from .hf import Policy, load_hf_state
from .tokenizer import Tokenizer

_CONTROL = 3  # tokenizer.ggml.token_type of control tokens
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path, *, format: str = "hermes", dtype: torch.dtype = torch.float32) -> Policy:
    """Read a policy from a GGUF file of architecture ``llama`` with a ``smollm`` byte-level vocabulary.

    Raises ConfigError for other architectures and vocabularies, ImportError without the ``gguf`` package.
    """
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        raise ImportError("reading GGUF needs the gguf package: pip install 'woodshed[hf]'") from None
    reader = GGUFReader(str(path))

    def value(key: str) -> Any:
        if key not in reader.fields:
            raise ConfigError(f"{path}: {key} is missing")
        return reader.fields[key].contents()

    if value("general.architecture") != "llama" or value("tokenizer.ggml.pre") != "smollm":
        found = f"{value('general.architecture')} with vocabulary {value('tokenizer.ggml.pre')}"
        raise ConfigError(f"{path}: only architecture llama with vocabulary smollm is supported, found {found}")
    names = {t.name for t in reader.tensors}
    config = _config(value, tied="output.weight" not in names)
    state: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        array: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            heads = config.num_heads if ".attn_q." in tensor.name else config.num_kv_heads
            array = half_split(array, heads)
        state[_hf_name(tensor.name)] = torch.from_numpy(array).to(dtype)
    decoder = Decoder(config, seed=None, dtype=dtype)
    load_hf_state(decoder, state, name=str(path))
    tokenizer = Tokenizer(_tokenizer(value), size=config.vocab_size)
    return Policy(decoder, tokenizer, get_format(format), config)


def half_split(weight_OD: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder rows of a q or k projection from GGUF's order (rotated pairs adjacent) to Hugging Face's (halves)."""
    pairs = weight_OD.reshape(heads, -1, 2, weight_OD.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight_OD.shape))


def _config(value: Callable[[str], Any], *, tied: bool) -> DecoderConfig:
    heads, width = int(value("llama.attention.head_count")), int(value("llama.embedding_length"))
    return DecoderConfig(
        vocab_size=len(value("tokenizer.ggml.tokens")),
        d_model=width,
        num_layers=int(value("llama.block_count")),
        num_heads=heads,
        num_kv_heads=int(value("llama.attention.head_count_kv")),
        head_dim=width // heads,
        d_ff=int(value("llama.feed_forward_length")),
        family="llama",
        max_positions=int(value("llama.context_length")),
        rope_theta=float(value("llama.rope.freq_base")),
        # It is stored as float32: 9.999999747378752e-06 means 1e-05.
        norm_eps=float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        qk_norm=False,
        tie_embeddings=tied,
    )


def _hf_name(name: str) -> str:
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    if name == "output.weight":
        return "lm_head.weight"
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER_NAMES:
        raise ConfigError(f"GGUF tensor {name!r} is not a weight of a Llama decoder")
    return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"


def _tokenizer(value: Callable[[str], Any]) -> tokenizers.Tokenizer:
    """Rebuild SmolLM's tokenizer: digits one by one, then GPT-2's pattern, byte-level BPE."""
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer
