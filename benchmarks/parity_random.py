"""Random configurations: models are made by transformers' own classes, loaded by us, and compared or refused.

Every field of the supported families' configurations is drawn, with supported and unsupported values; some models are
of other families. Directories are written in the layout of transformers 5 or 4, in one file or in shards, and sometimes
without fields that have a default. The reference is the model that transformers itself loads from the directory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import ConfigError
from woodshed.policy.decoder import causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, load_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe

TOLERANCE = 2e-3
VOCABULARY = 384
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
OTHERS = ("mistral", "gemma2", "granite", "olmo2", "phi3", "qwen2_moe", "mixtral", "stablelm", "smollm3", "cohere")
DEFAULTED = (
    "head_dim", "rms_norm_eps", "rope_parameters", "num_key_value_heads", "hidden_act", "attention_bias",
    "norm_topk_prob", "tie_word_embeddings", "max_position_embeddings", "decoder_sparse_step", "mlp_only_layers",
    "architectures",
)  # fmt: skip
FOREIGN = {
    "final_logit_softcapping": 2.0, "attn_logit_softcapping": 2.0, "partial_rotary_factor": 0.5, "logits_scaling": 3.0,
    "residual_multiplier": 0.5, "attention_multiplier": 0.2, "embedding_multiplier": 2.0, "sliding_window": 4,
    "no_rope_layers": [0, 1], "use_qk_norm": True, "query_pre_attn_scalar": 3, "layer_norm_eps": 0.1, "alibi": True,
    "rope_interleaved": True, "qk_layernorm": True, "pretraining_tp": 2, "head_scale": 2.0, "scale_depth": 1.4,
}  # fmt: skip


def draw(rng: random.Random) -> dict[str, Any]:
    """Return a ``config.json`` as a person or a program might have written it."""
    chance = lambda share: rng.random() < share  # noqa: E731
    family = rng.choice(OTHERS) if chance(0.08) else rng.choice([*ARCHITECTURES])
    heads = rng.choice([2, 4, 6])
    kv = rng.choice([k for k in (1, 2, 3, heads) if heads % k == 0])
    layers = rng.randint(1, 4)
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "hidden_size": heads * rng.choice([8, 16, 20]),
        "intermediate_size": rng.choice([48, 72, 128]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_act": "silu" if chance(0.85) else rng.choice(["gelu", "relu", "gelu_pytorch_tanh", "swish", "tanh"]),
        "max_position_embeddings": rng.choice([32, 64, 256]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3, 0.1]),
        "tie_word_embeddings": chance(0.5),
        "attention_bias": chance(0.3),
        "rope_parameters": _rope(rng),
        "pad_token_id": None,
    }
    if chance(0.6):
        config["head_dim"] = rng.choice([8, 16, 32, 12])
    if family == "llama":
        config["mlp_bias"] = chance(0.15)
    elif chance(0.25):
        config["use_sliding_window"] = chance(0.6)
        config["sliding_window"] = rng.choice([4, 8, None])
        config["max_window_layers"] = rng.randint(0, layers)
        if chance(0.3):
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if family.endswith("moe") or family == "mixtral":
        experts = rng.randint(2, 8)
        config |= {"num_experts": experts, "num_experts_per_tok": rng.randint(1, min(experts, 4))}
        config |= {"moe_intermediate_size": rng.choice([16, 40]), "norm_topk_prob": chance(0.5)}
        config |= {"decoder_sparse_step": rng.choice([1, 1, 2, 3])}
        config["mlp_only_layers"] = sorted(rng.sample(range(layers), rng.randint(0, layers - 1))) if chance(0.3) else []
    if chance(0.2):
        name = rng.choice([*FOREIGN])
        config[name] = FOREIGN[name]
    return config


def _rope(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["default", "default", "default", "linear", "llama3", "llama3", "dynamic", "yarn", "longrope"])
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": rng.choice([500.0, 10_000.0, 1e6])}
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 3.5, 8.0])
    if kind in ("llama3", "yarn", "longrope"):
        rope["original_max_position_embeddings"] = rng.choice([8, 16, 32])
    if kind == "llama3":
        rope |= {"low_freq_factor": rng.choice([1.0, 2.0]), "high_freq_factor": rng.choice([4.0, 8.0])}
    if kind == "default" and rng.random() < 0.1:
        rope["partial_rotary_factor"] = 0.5
    return rope


class Skipped(Exception):
    """transformers itself cannot make or load this configuration."""


def make(drawn: dict[str, Any], rng: random.Random, folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Write the directory; return the changes made to what transformers wrote. Raises Skipped."""
    drawn = dict(drawn)
    if drawn["rope_parameters"]["rope_type"] == "longrope":
        pairs = (drawn.get("head_dim") or drawn["hidden_size"] // drawn["num_attention_heads"]) // 2
        drawn["rope_parameters"] |= {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs}
    try:
        config = AutoConfig.for_model(**drawn)
        torch.manual_seed(rng.randrange(1 << 30))
        model = AutoModelForCausalLM.from_config(config).float()
    except Exception as error:
        raise Skipped(f"{type(error).__name__}: {error}") from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape))
            elif parameter.ndim == 1:
                parameter.copy_(0.5 * torch.randn(parameter.shape))
            else:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    if rng.random() < 0.2:
        model = model.to(rng.choice([torch.bfloat16, torch.float16]))
    model.save_pretrained(folder, max_shard_size="40KB" if rng.random() < 0.25 else "5GB")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    (folder / "woodshed.json").write_text(json.dumps({"format": "compact", "version": 0}))
    return _edit(folder, rng)


def _edit(folder: Path, rng: random.Random) -> dict[str, Any]:
    path = folder / "config.json"
    config, changes = json.loads(path.read_text()), {}
    if rng.random() < 0.35 and config.get("rope_parameters"):  # as transformers 4 wrote it
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta", 10_000.0)
        kind = rope.pop("rope_type", "default")
        key = rng.choice(["type", "rope_type"])
        config["rope_scaling"] = None if kind == "default" and not rope else {key: kind, **rope}
        changes["rope"] = f"as version 4, {key}"
    if rng.random() < 0.25:
        gone = rng.choice(DEFAULTED)
        config.pop(gone, None)
        changes["left out"] = gone
    single = folder / "model.safetensors"
    if single.exists() and rng.random() < 0.2:
        state = load_file(single)
        if config.get("tie_word_embeddings"):
            state["lm_head.weight"] = torch.randn_like(state["model.embed_tokens.weight"])
            changes["head"] = "differs, tied"
        elif "lm_head.weight" in state:
            config["tie_word_embeddings"] = True
            changes["head"] = "kept, then tied"
        save_file(state, single, metadata={"format": "pt"})
    path.write_text(json.dumps(config))
    return changes


@torch.no_grad()
def reference(folder: Path) -> Any:
    """Load the directory with transformers. Raises Skipped if that fails or leaves weights unset."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    except Exception as error:
        raise Skipped(f"{type(error).__name__}: {error}") from None
    if info["missing_keys"] or info["mismatched_keys"] or info.get("error_msgs"):
        raise Skipped(f"transformers sets weights at random: {sorted(info['missing_keys'])[:3]}")
    return model.eval()


@torch.no_grad()
def gap(policy: Policy, model: Any, rng: random.Random) -> float:
    """Return the largest difference of log-probabilities: of the decoder at every token, and of the engine at sampled
    tokens."""
    most = policy.config.max_positions - 8
    length = max(4, min(rng.choice([12, 40, most]), most))
    tokens = [rng.randrange(policy.tokenizer.vocab_size) for _ in range(length)]

    async def sample() -> Any:
        engine = LocalEngine(policy.decoder, settings=EngineSettings(seed=0, prefill_tokens=16))
        try:
            return await engine.generate(tokens, Sampling(max_tokens=6))
        finally:
            await engine.close()

    whole = torch.tensor(tokens)
    hidden = policy.decoder.forward(whole[None], torch.arange(length)[None], causal_attend())
    own = policy.decoder.logits(hidden)[0]
    done = asyncio.run(sample())
    logits = model(torch.tensor([tokens + done.tokens])).logits[0].float()
    theirs = logits.log_softmax(-1)
    # Two forward passes, because a rope scaling that depends on the input's length differs between the two.
    short = model(whole[None]).logits[0].float().log_softmax(-1)
    gaps = [float((own.float().log_softmax(-1) - short).abs().max())]
    for i, token in enumerate(done.tokens):
        gaps.append(abs(float(theirs[len(tokens) - 1 + i, token]) - done.logprobs[i]))
    return max(gaps)


def measure_random(wanted: int, *, seed: int) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return figures and detail of ``wanted`` configurations that transformers can load."""
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    largest = 0.0
    chat = get_format("compact")
    with tempfile.TemporaryDirectory() as name:
        tokenizer = Path(name) / "tokenizer.json"
        Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens)).save(tokenizer)
        while counts["right"] + counts["refused"] + counts["silently_wrong"] < wanted:
            drawn, folder = draw(rng), Path(name) / "model"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                changes = make(drawn, rng, folder, tokenizer)
                model = reference(folder)
            except Skipped:
                counts["skipped"] += 1
                continue
            try:
                policy = load_policy(folder)
            except ConfigError as error:
                counts["refused"] += 1
                reasons[str(error).removeprefix(f"{folder}: ").split(";")[0][:60]] += 1
                continue
            found = gap(policy, model, rng)
            if found <= TOLERANCE:
                counts["right"] += 1
                largest = max(largest, found)
            else:
                counts["silently_wrong"] += 1
                wrong.append({"config": drawn, "changes": changes, "max_abs_dlogp": found})
    figures: dict[str, float | None] = {k: float(counts[k]) for k in ("right", "refused", "silently_wrong")}
    figures["right_max_abs_dlogp"] = largest
    return figures, {"skipped": counts["skipped"], "refusals": dict(reasons.most_common()), "wrong": wrong}
