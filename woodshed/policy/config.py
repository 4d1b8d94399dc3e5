"""Configuration of a decoder, read from ``config.json`` of a Hugging Face directory and checked. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


class ConfigError(ValueError):
    """A model configuration is invalid or not supported; the message names the field and what to do."""


@dataclass(frozen=True)
class RopeScaling:
    """Frequency scaling of rotary embeddings: ``linear`` (positions / factor) or ``llama3`` (Llama 3.1)."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and switches of one decoder.

    The four families differ only in ``qk_norm`` (Qwen3), biases (Qwen2) and experts (Qwen3-MoE); SmolLM is ``llama``
    with tied embeddings. A layer is a mixture of experts when ``is_moe(layer)``; ``num_experts`` 0 means none is.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    family: Family = "qwen3"
    max_positions: int = 2048
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    qk_norm: bool = True
    tie_embeddings: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_d_ff: int = 0
    norm_topk_prob: bool = True
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")
        if self.family not in ARCHITECTURES.values():
            raise ConfigError(f"family {self.family!r} is unknown; known: {sorted(ARCHITECTURES.values())}")
        if self.qk_norm != (self.family in ("qwen3", "qwen3_moe")):
            raise ConfigError(f"qk_norm {self.qk_norm} contradicts family {self.family!r}")
        if (self.num_experts > 0) != (self.family == "qwen3_moe"):
            raise ConfigError(f"num_experts {self.num_experts} contradicts family {self.family!r}")
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ConfigError(f"num_experts_per_tok {self.num_experts_per_tok} must be 1 to {self.num_experts}")
        if self.num_experts and (self.moe_d_ff < 1 or self.decoder_sparse_step < 1):
            raise ConfigError("a mixture of experts needs moe_d_ff >= 1 and decoder_sparse_step >= 1")

    def is_moe(self, layer: int) -> bool:
        """Return whether ``layer`` (0-based) is a mixture of experts, by Qwen3-MoE's rule."""
        sparse = self.num_experts > 0 and (layer + 1) % self.decoder_sparse_step == 0
        return sparse and layer not in self.mlp_only_layers

    @property
    def num_kv_groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def architecture(self) -> str:
        return next(a for a, family in ARCHITECTURES.items() if family == self.family)

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> DecoderConfig:
        """Read a parsed ``config.json`` (transformers 4 or 5). Raises ConfigError if it is not supported."""
        return _from_hf(config)

    def to_hf(self) -> dict[str, Any]:
        """Return the ``config.json`` dict, without token ids and dtype, which the writer of a directory adds."""
        return _to_hf(self)


def _need(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ConfigError(f"config.json: {key} is missing")
    return config[key]


def _from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    names = config.get("architectures") or []
    family = next((ARCHITECTURES[a] for a in names if a in ARCHITECTURES), None)
    if family is None and not names and config.get("model_type") in ARCHITECTURES.values():
        family = config["model_type"]
    if family is None:
        raise ConfigError(f"config.json: architectures {names} is not supported; supported: {sorted(ARCHITECTURES)}")
    refused = {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False, "pretraining_tp": 1}
    for key, value in refused.items():
        if config.get(key, value) not in (value, None):
            raise ConfigError(f"config.json: {key} {config[key]!r} is not supported; only {value!r} is")
    if config.get("quantization_config"):
        raise ConfigError("config.json: quantization_config is not supported; save the model dequantised")
    d_model, heads = int(_need(config, "hidden_size")), int(_need(config, "num_attention_heads"))
    theta, scaling = _read_rope(config)
    bias = bool(config.get("attention_bias", False))
    moe = family == "qwen3_moe"
    default_head_dim = d_model // heads if family in ("llama", "qwen2") or moe else 128
    return DecoderConfig(
        vocab_size=int(_need(config, "vocab_size")),
        d_model=d_model,
        num_layers=int(_need(config, "num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or default_head_dim),
        d_ff=int(_need(config, "intermediate_size")),
        family=family,
        max_positions=int(config.get("max_position_embeddings") or 2048),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        num_experts=int(config.get("num_experts") or config.get("num_local_experts") or 128) if moe else 0,
        num_experts_per_tok=int(config.get("num_experts_per_tok", 8)) if moe else 0,
        moe_d_ff=int(_need(config, "moe_intermediate_size")) if moe else 0,
        norm_topk_prob=bool(config.get("norm_topk_prob", False)) if moe else True,
        decoder_sparse_step=int(config.get("decoder_sparse_step", 1)) if moe else 1,
        mlp_only_layers=tuple(config.get("mlp_only_layers") or ()) if moe else (),
    )


def _read_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Read theta and scaling. transformers 5 writes ``rope_parameters``, version 4 ``rope_theta`` and
    ``rope_scaling``."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind not in ("linear", "llama3"):
        raise ConfigError(f"config.json: rope_type {kind!r} is not supported; supported: default, linear, llama3")
    if "factor" not in rope:
        raise ConfigError(f"config.json: rope_type {kind!r} needs a factor")
    if kind == "linear":
        return theta, RopeScaling("linear", float(rope["factor"]))
    original = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
    return theta, RopeScaling(
        kind="llama3",
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_max_positions=int(original),
    )


def _to_hf(c: DecoderConfig) -> dict[str, Any]:
    out: dict[str, Any] = {
        "architectures": [c.architecture],
        "model_type": c.family,
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.d_ff,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": c.tie_embeddings,
        "attention_bias": c.out_bias,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if c.qkv_bias != c.out_bias and c.family != "qwen2":
        raise ConfigError(
            f"Hugging Face's {c.family!r} has no config with qkv_bias {c.qkv_bias} and out_bias {c.out_bias}"
        )
    if c.rope_scaling is not None:
        scaling: dict[str, Any] = {"rope_type": c.rope_scaling.kind, "factor": c.rope_scaling.factor}
        if c.rope_scaling.kind == "llama3":
            scaling["low_freq_factor"] = c.rope_scaling.low_freq_factor
            scaling["high_freq_factor"] = c.rope_scaling.high_freq_factor
            scaling["original_max_position_embeddings"] = c.rope_scaling.original_max_positions
        out["rope_scaling"] = scaling
    if c.num_experts:
        out |= {
            "num_experts": c.num_experts,
            "num_experts_per_tok": c.num_experts_per_tok,
            "moe_intermediate_size": c.moe_d_ff,
            "norm_topk_prob": c.norm_topk_prob,
            "decoder_sparse_step": c.decoder_sparse_step,
            "mlp_only_layers": list(c.mlp_only_layers),
        }
    return out
