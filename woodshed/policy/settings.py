"""Settings of the policy."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from woodshed.record.settings import Device, Settings

from .formats import get_format, is_loaded


def _known_format(name: str) -> str:
    if not is_loaded(name):
        get_format(name)
    return name


FormatName = Annotated[str, AfterValidator(_known_format)]
"""Chat format: a built-in name, or ``"module:Class"`` of the user's own, which validation imports."""


class PolicySettings(Settings):
    """Source of the policy, and its sizes when it starts from scratch."""

    source: str = "scratch"
    """``scratch``, ``smollm2`` (the weights in a Python package), a Hugging Face causal LM directory, or the directory
    of a finished run: RL then starts from its result, and the rollouts that it solved are trained on again, together
    with those that this run solves."""

    format: str = "auto"
    """Chat format: compact, hermes, qwen3_coder, llama3, kimi_k2, or ``"module:Class"`` of your own. ``auto``:
    ``compact`` from scratch, otherwise the one that the directory's vocabulary was made for."""

    family: Literal["qwen3", "qwen3_moe", "llama"] = "qwen3"
    """Network family of a policy from scratch."""

    vocab_size: int = Field(1280, ge=264)
    """Entries of the byte-level BPE vocabulary that is trained for a policy from scratch, bytes and control tokens
    included."""

    d_model: int = Field(128, ge=8)
    """Width of the residual stream."""

    num_layers: int = Field(4, ge=1)
    """Number of layers."""

    num_heads: int = Field(4, ge=1)
    """Query heads; the head width is ``d_model / num_heads``."""

    num_kv_heads: int = Field(4, ge=1)
    """Key/value heads. Small policies copy badly when heads share keys, so this equals ``num_heads``."""

    d_ff: int = Field(352, ge=8)
    """Hidden width of the feed-forward part (SwiGLU: three matrices of this width)."""

    max_positions: int = Field(2048, ge=64)
    """Longest context in tokens."""

    rope_theta: float = Field(10_000.0, gt=1)
    """Base of the rotary frequencies."""

    num_experts: int = Field(8, ge=2)
    """Experts per layer; only for ``qwen3_moe``."""

    num_experts_per_tok: int = Field(2, ge=1)
    """Experts that each token uses; only for ``qwen3_moe``."""

    moe_d_ff: int = Field(176, ge=8)
    """Hidden width of one expert; only for ``qwen3_moe``."""

    seed: int = 0
    """Seed of the initial weights of a policy from scratch."""

    device: Device = "auto"
    """Device of the network, in training and in the engine. ``auto``: a GPU if torch finds one, else the CPU."""

    @field_validator("format")
    @classmethod
    def _format_exists(cls, name: str) -> str:
        return name if name == "auto" else _known_format(name)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.d_model % self.num_heads or (self.d_model // self.num_heads) % 2:
            raise ValueError(f"d_model {self.d_model} must be num_heads {self.num_heads} times an even head width")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} exceeds num_experts {self.num_experts}")
        return self
