"""Settings of the trainer. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from woodshed.record.settings import Settings


class OptimizerSettings(Settings):
    """AdamW for everything, or Muon for the matrices and AdamW for the rest."""

    kind: Literal["adamw", "muon"] = "adamw"
    """``muon``: matrices inside the layers by Muon; embedding, head, norms, biases and routers by AdamW."""

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate of AdamW. 3e-4 is for policies of a few million parameters; use about 1e-6 from 0.5B up."""

    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moment."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW; not applied to norms and biases."""

    muon_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon."""

    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""

    muon_nesterov: bool = True
    """Nesterov momentum: look ahead along the momentum before orthogonalising."""

    muon_weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of Muon."""

    muon_steps: int = Field(default=5, ge=1, le=20)
    """Number of Newton-Schulz iterations."""

    muon_scale: Literal["shape", "rms"] = "shape"
    """Scale of an update for a matrix [out, in]: ``shape`` sqrt(max(1, out / in)) (Jordan); ``rms``
    0.2 sqrt(max(out, in)), which matches AdamW's usual update size (Moonlight, arXiv:2502.16982)."""

    muon_per_head: bool = False
    """Orthogonalise attention matrices head by head (as Composer 2.5 does) instead of whole q, k, v and output
    matrices."""


class ScheduleSettings(Settings):
    """The learning rate over optimizer steps, as a fraction of the peak."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up; linear and cosine reach ``floor`` at ``total_steps``."""

    warmup_steps: int = Field(default=5, ge=0)
    """The factor rises linearly over this many steps: step s (from 0) has (s + 1) / warmup_steps."""

    total_steps: int = Field(default=0, ge=0)
    """Number of steps of the whole stage, including the warm-up; needed by linear and cosine."""

    floor: float = Field(default=0.0, ge=0, le=1)
    """Factor at and after ``total_steps``."""

    @model_validator(mode="after")
    def _has_an_end(self) -> ScheduleSettings:
        if self.kind != "constant" and self.total_steps <= self.warmup_steps:
            raise ValueError(f"schedule.kind {self.kind!r} needs schedule.total_steps above warmup_steps")
        return self


class ImportanceSettings(Settings):
    """Importance weights of tokens sampled by an older policy, from r = pi(token) / behaviour(token) per token."""

    mode: Literal["mask", "truncate", "off"] = "mask"
    """``mask``: weight r inside [low, high], 0 outside (IcePop). ``truncate``: weight min(r, cap).
    ``off``: weight 1. The weight is never differentiated."""

    low: float = Field(default=0.2, gt=0, le=1)
    """Smallest ratio that ``mask`` keeps."""

    high: float = Field(default=5.0, ge=1)
    """Largest ratio that ``mask`` keeps."""

    cap: float = Field(default=2.0, ge=1)
    """Largest weight with ``truncate``."""


class ClipSettings(Settings):
    """The clipped surrogate min(r w, clip(r, 1 - low, 1 + high) w). A token whose ratio is already outside the range
    has no gradient that would push it further out."""

    low: float = Field(default=0.2, ge=0, le=1)
    """Clip range below 1."""

    high: float = Field(default=0.2, ge=0)
    """Clip range above 1; a little more than ``low`` keeps exploration (DAPO, arXiv:2503.14476: 0.28)."""


class KlSettings(Settings):
    """The loss part ``ref_kl``; ``rl.kl_beta`` is its weight."""

    estimator: Literal["k1", "k2", "k3"] = "k1"
    """``k1``: logp - ref, detached inside the advantage; ``k2``: its square over two as a loss (the same gradient);
    ``k3``: r - 1 - log r with r = ref / pi, as a loss. The variance of k3 explodes where the two policies separate."""

    reference_steps: int = Field(default=0, ge=0)
    """Number of steps after which the reference is updated to the current policy. 0: the reference is always the policy
    that RL starts from."""


class HintKlSettings(Settings):
    """The loss part ``hint_kl``: distil the policy with a hint (teacher) into the policy without it. ``rl.hints`` says
    which messages get a hint, and ``rl.hints.weight`` is the weight. p is the trained policy, q the teacher."""

    form: Literal["sampled", "forward", "reverse", "jsd"] = "reverse"
    """``sampled``: log p - log q of the sampled token, detached, as a negative advantage. Over the vocabulary:
    ``forward`` KL(q || p); ``reverse`` KL(p || q); ``jsd``, between the two."""

    top_k: int = Field(default=0, ge=0)
    """Number of the teacher's likeliest tokens that are compared, with all others together as one; 0 compares the whole
    vocabulary. Not for ``sampled``."""

    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """For ``jsd``: the share of q in the mixture that both are compared with."""

    teacher: Literal["live", "lagged", "averaged", "frozen"] = "live"
    """Weights of the teacher. ``live``: those of the policy before the step; ``frozen``: those that RL starts from;
    ``lagged``: those after the last multiple of ``teacher_steps`` steps; ``averaged``: an exponential moving average of
    the policy. All but the first keep a second policy in memory, and the average is saved with each checkpoint."""

    teacher_steps: int = Field(default=10, ge=1)
    """Number of steps between updates of a ``lagged`` teacher."""

    teacher_rate: float = Field(default=0.05, gt=0, lt=1)
    """Share of the way to the policy that an ``averaged`` teacher moves after each step (SDPO: 0.05)."""

    gate_low: float = Field(default=0.0, ge=0)
    """Tokens with |log q - log p| below this, in nats, do not count; p and q of the sampled token."""

    gate_high: float = Field(default=0.0, ge=0)
    """Tokens with |log q - log p| above this, in nats, do not count; 0: no upper limit."""

    gate_slope: float = Field(default=0.0, ge=0)
    """Above 0: tokens are multiplied by sigmoid(gate_slope * (log q - log p)), so that those that the teacher endorses
    count more than those that it rejects (SDAR, arXiv:2605.15155)."""

    until_rejected: float = Field(default=0.0, ge=0)
    """Above 0: a token is rejected if its log-probability under the teacher is more than this many nats below the one
    at sampling, and tokens after the first rejected one of a message do not count: they continue a text that the
    teacher would not have written, so its distribution there says little. 0: all tokens count."""

    @model_validator(mode="after")
    def _possible(self) -> HintKlSettings:
        if self.form == "sampled" and self.top_k:
            raise ValueError(
                'hint_kl.top_k compares distributions: set hint_kl.top_k = 0 or another form than "sampled"'
            )
        if self.gate_high and self.gate_high <= self.gate_low:
            raise ValueError(
                f"hint_kl.gate_high is {self.gate_high}, not above gate_low = {self.gate_low}: no token would count; "
                "raise it, or set it to 0 for no limit"
            )
        return self


class TrainSettings(Settings):
    """One training stage."""

    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer."""

    schedule: ScheduleSettings = ScheduleSettings()
    """The learning rate schedule."""

    importance: ImportanceSettings = ImportanceSettings()
    """Correction for off-policy tokens, used by the loss parts ``rl``, ``ref_kl`` and (only the form ``sampled``)
    ``hint_kl``."""

    clip: ClipSettings = ClipSettings()
    """Clipping of the loss part ``ppo``, for ratios of tokens."""

    sequence_clip: ClipSettings = ClipSettings(low=3e-4, high=4e-4)
    """Clipping of the loss part ``gspo``, for ratios of sequences, which vary far less (GSPO, section 5.1)."""

    kl: KlSettings = KlSettings()
    """Settings of the loss part ``ref_kl``."""

    hint_kl: HintKlSettings = HintKlSettings()
    """Settings of the loss part ``hint_kl``."""

    clip_norm: float = Field(default=1.0, ge=0)
    """Gradients are scaled down to this global L2 norm; 0 turns clipping off."""

    microbatch_tokens: int = Field(default=4096, ge=1)
    """Maximum number of padded tokens per forward pass. Changes speed and memory, not the gradient."""

    logits_elements: int = Field(default=1 << 22, ge=1)
    """Maximum number of logits (tokens x vocabulary) that exist at once."""

    products: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the operands of matrix products; weights, sums and gradients are float32 either way. ``bfloat16`` is
    faster where the hardware multiplies it: on an x86 CPU with AMX (there attention and Muon round too), on one with
    ``avx512_bf16`` (matrices of layers only), and on a GPU by autocast, where the results of products, except
    logits, are bfloat16 too. Other CPUs multiply in float32 all the same. Log-probabilities then differ from the
    engine's about as much as with bfloat16 weights."""

    replay_ratio: float = Field(default=0.0, ge=0, le=1)
    """Router replay of a mixture of experts: an expert that the engine chose is used if its score is at least this
    factor times the lowest score among the trainer's own choice. 0 uses all of the engine's experts, 1 only those that
    the trainer would choose too."""

    entropy: bool = True
    """Measure the policy's entropy at trained tokens (one more pass over the logits)."""

    recompute: bool = False
    """Recompute activations in the backward pass: about a third more time, far less memory."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints to keep."""

    fsync: bool = True
    """Flush checkpoints to disk before they count, so that they survive a power cut and not only a killed process."""
