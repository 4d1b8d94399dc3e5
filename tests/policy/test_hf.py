"""The decoder against transformers, in both directions, and the contract of a policy's directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from woodshed.policy.config import ConfigError, DecoderConfig, RopeScaling
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, hf_state, load_hf_state, load_policy, save_policy, stored_format
from woodshed.policy.tokenizer import Tokenizer, TokenizerError, train_bpe

BASE = DecoderConfig(
    vocab_size=300, d_model=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48, max_positions=64
)
LLAMA = replace(BASE, family="llama", qk_norm=False)
MOE = replace(BASE, family="qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_d_ff=16)
CASES = {
    "llama": replace(LLAMA, tie_embeddings=False, num_kv_heads=4),
    "llama-bias": replace(LLAMA, qkv_bias=True, out_bias=True),
    "llama3-rope": replace(
        LLAMA, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 32), rope_theta=500.0, norm_eps=1e-5
    ),
    "linear-rope": replace(LLAMA, rope_scaling=RopeScaling("linear", 4.0)),
    "smollm": replace(LLAMA, num_heads=3, num_kv_heads=1, d_model=24, rope_theta=100_000.0),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True),
    "qwen3": replace(BASE, head_dim=16),
    "qwen3-untied": replace(BASE, tie_embeddings=False, num_kv_heads=1),
    "qwen3-moe": replace(MOE, tie_embeddings=False),
    "qwen3-moe-mixed": replace(MOE, decoder_sparse_step=2, mlp_only_layers=(0,), norm_topk_prob=False),
    "qwen3-moe-only-one": replace(MOE, mlp_only_layers=(0, 2), num_experts_per_tok=1),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    chat = get_format("compact")
    return Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens))


def randomised(config: DecoderConfig, seed: int) -> Decoder:
    """Every parameter random, norms and biases too, so that a swapped or dropped tensor shows."""
    decoder = Decoder(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return decoder


def our_logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    with torch.no_grad():
        return decoder.logits(decoder(tokens, positions, causal_attend()))


def some_tokens(config: DecoderConfig) -> Tensor:
    return torch.randint(0, config.vocab_size, (2, 50), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CASES)
def test_transformers_opens_ours(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = CASES[name]
    config = replace(config, vocab_size=max(config.vocab_size, tokenizer.vocab_size))
    decoder = randomised(config, seed=3)
    save_policy(Policy(decoder, tokenizer, get_format("compact"), config, version=7), tmp_path / "p")
    tokens = some_tokens(config)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype=torch.float32)
    assert type(theirs).__name__ == config.architecture
    with torch.no_grad():
        difference = (theirs(tokens).logits - our_logits(decoder, tokens)).abs().max()
    assert difference < 1e-4
    again = load_policy(tmp_path / "p")
    assert again.config == config and again.version == 7 and again.format.name == "compact"
    assert torch.equal(our_logits(again.decoder, tokens), our_logits(decoder, tokens))


@pytest.mark.parametrize("name", ["llama", "llama3-rope", "smollm", "qwen2", "qwen3", "qwen3-moe", "qwen3-moe-mixed"])
def test_we_open_theirs(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = CASES[name]
    torch.manual_seed(5)
    their_config: Any = transformers.AutoConfig.for_model(**config.to_hf())
    theirs = transformers.AutoModelForCausalLM.from_config(their_config).eval()
    with torch.no_grad():
        for parameter_name, parameter in theirs.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.1 if parameter.ndim > 1 else 0.3))
            if "norm" in parameter_name:
                parameter.add_(1)
    theirs.save_pretrained(tmp_path / "p")
    tokenizer.save(tmp_path / "p" / "tokenizer.json")
    (tmp_path / "p" / "woodshed.json").write_text('{"format": "compact"}')
    policy = load_policy(tmp_path / "p")
    assert policy.config == config
    tokens = some_tokens(config)
    with torch.no_grad():
        difference = (theirs(tokens).logits - our_logits(policy.decoder, tokens)).abs().max()
    assert difference < 1e-4


def test_their_tokenizer_agrees(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_policy(Policy(Decoder(BASE), tokenizer, get_format("compact"), BASE), tmp_path / "p")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "p")
    text = "<bos>def f(x):\n    return x + 12<end>"
    assert theirs.encode(text) == tokenizer.encode(text, allow_special=True)
    assert theirs.eos_token == "<end>" and theirs.bos_token == "<bos>"
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "p")
    assert generation.eos_token_id == [tokenizer.special_id("<end>")]


def test_state_is_views_and_loads_in_place() -> None:
    source, target = randomised(MOE, seed=1), randomised(MOE, seed=2)
    pointers = [p.data_ptr() for p in target.parameters()]
    load_hf_state(target, {n: t.clone() for n, t in hf_state(source).items()})
    assert [p.data_ptr() for p in target.parameters()] == pointers
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
    hf_state(target)["model.layers.1.self_attn.k_proj.weight"].zero_()
    assert target.layers[1].qkv[32:48].abs().sum() == 0 and target.layers[1].qkv[:32].abs().sum() > 0
    assert sum(t.numel() for t in hf_state(target).values()) == target.num_parameters


def test_a_bad_state_changes_nothing() -> None:
    decoder = randomised(BASE, seed=1)
    before = {n: t.clone() for n, t in hf_state(decoder).items()}
    good = {n: torch.zeros_like(t) for n, t in before.items()}
    name = "model.layers.2.mlp.down_proj.weight"
    for bad, message in (
        ({n: t for n, t in good.items() if n != name}, f"lacks {name}"),
        ({**good, "model.extra": torch.zeros(1)}, "unknown model.extra"),
        ({**good, name: torch.zeros(3, 3)}, r"down_proj.weight has shape \[3, 3\], expected \[32, 48\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_hf_state(decoder, bad)
        assert all(torch.equal(before[n], t) for n, t in hf_state(decoder).items())


def foreign(path: Path, chat_name: str, tokens: tuple[str, ...] | None = None) -> Path:
    """A published directory: no ``woodshed.json``, and a vocabulary with these control tokens."""
    chat = get_format(chat_name)
    save_policy(Policy(Decoder(BASE), Tokenizer(train_bpe(["a b"], 300, chat.special_tokens)), chat, BASE), path)
    Tokenizer(train_bpe(["a b"], 300, tokens or chat.special_tokens)).save(path / "tokenizer.json")
    for name in ("woodshed.json", "chat_template.jinja"):
        (path / name).unlink(missing_ok=True)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("name", ["compact", "llama3", "kimi_k2"])
def test_the_vocabulary_tells_the_format(name: str, tmp_path: Path) -> None:
    path = foreign(tmp_path / "p", name)
    assert load_policy(path).format.name == name
    chatml = foreign(tmp_path / "c", "hermes", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    assert load_policy(chatml).format.name == "hermes"


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_the_chat_template_decides_between_formats_of_one_vocabulary(name: str, tmp_path: Path) -> None:
    path = foreign(tmp_path / "p", name)
    with pytest.raises(TokenizerError, match=r"fits the chat formats hermes and qwen3_coder.* set policy\.format"):
        load_policy(path)
    assert load_policy(path, format="qwen3_coder").format.name == "qwen3_coder"
    settings = json.loads((path / "tokenizer_config.json").read_text())
    stored = {**settings, "chat_template": [{"name": "tool_use", "template": get_format(name).chat_template()}]}
    (path / "tokenizer_config.json").write_text(json.dumps(stored))
    assert load_policy(path).format.name == name
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "chat_template.jinja").write_text(get_format(name).chat_template() or "")
    assert load_policy(path).format.name == name
    save_policy(load_policy(path), path)
    assert stored_format(path).name == name


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path / "p", "llama3", ("<s>", "</s>"))
    with pytest.raises(TokenizerError, match=r"no known chat format; set policy\.format .*hermes.*kimi_k2"):
        load_policy(path)
    with pytest.raises(TokenizerError, match="'kimi_k2' does not fit"):
        load_policy(path, format="kimi_k2")
    with pytest.raises(TokenizerError, match="unknown chat format 'chatml'"):
        load_policy(path, format="chatml")


def test_a_sharded_checkpoint_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = CASES["qwen3"]
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config.to_hf()))
    theirs.save_pretrained(tmp_path / "p", max_shard_size="20KB")
    assert not (tmp_path / "p" / "model.safetensors").exists()
    tokenizer.save(tmp_path / "p" / "tokenizer.json")
    (tmp_path / "p" / "woodshed.json").write_text('{"format": "compact"}')
    tokens = some_tokens(config)
    with torch.no_grad():
        assert (theirs(tokens).logits - our_logits(load_policy(tmp_path / "p").decoder, tokens)).abs().max() < 1e-4


def test_saving_is_all_or_nothing(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(Decoder(BASE, seed=1), tokenizer, get_format("compact"), BASE, version=1)
    save_policy(policy, tmp_path / "p")
    policy.version = 2

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("woodshed.policy.hf.save_file", full)
        with pytest.raises(OSError, match="no space"):
            save_policy(policy, tmp_path / "p")
    assert load_policy(tmp_path / "p").version == 1
    save_policy(policy, tmp_path / "p")
    assert load_policy(tmp_path / "p").version == 2
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_errors_name_the_file_and_the_field(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_policy(tmp_path / "nothing")
    save_policy(Policy(Decoder(BASE), tokenizer, get_format("compact"), BASE), tmp_path / "p")
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    for change, message in (
        ({"architectures": ["MambaForCausalLM"]}, "architectures .*Mamba"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type 'yarn'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "not a multiple"),
    ):
        (tmp_path / "p" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ConfigError, match=message):
            load_policy(tmp_path / "p")
    (tmp_path / "p" / "config.json").write_text(json.dumps(config))
    (tmp_path / "p" / "woodshed.json").write_text('{"format": "hermes"}')
    with pytest.raises(TokenizerError, match="'hermes' does not fit"):
        load_policy(tmp_path / "p")
    weights = tmp_path / "p" / "model.safetensors"
    (tmp_path / "p" / "woodshed.json").write_text('{"format": "compact"}')
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_policy(tmp_path / "p")
