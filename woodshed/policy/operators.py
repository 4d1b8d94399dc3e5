"""Operators between a policy's matrix products, computed by torch.

``native/fused.py`` has the same operators in fewer passes over memory, for training on a CPU.

Axis names: D model, H query heads, K key/value heads, E head width, F feed-forward width, V vocabulary, C tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Ragged


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + delta ``[..., D]`` (x itself without delta), and its RMS norm (Zhang and Sennrich 2019) times weight
    ``[D]``."""
    total = x if delta is None else x + delta
    return total, F.rms_norm(total, total.shape[-1:], weight, eps)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Apply RoPE in Hugging Face's half-split layout. x ``[..., H, E]``; cos, signed_sin ``[..., 1, E]``.

    ``rotate_half(x) * sin`` equals ``roll(x, E / 2) * [-sin, sin]``, which saves a negation and a concatenation.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def split_heads(
    qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, turn: Tensor, heads: int, kv_heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv ``[..., (H + 2 K) E]`` into queries ``[..., H, E]``, keys and values ``[..., K, E]``. Queries and keys
    are normalised if there are weights ``[E]`` for it, and rotated by turn ``[..., 2 E]`` (see ``layers.rope_table``).
    """
    qkv = qkv.unflatten(-1, (heads + 2 * kv_heads, -1))
    qk, v = qkv.split((heads + kv_heads, kv_heads), -2)
    if q_norm is not None and k_norm is not None:
        scale = torch.cat((q_norm.expand(heads, -1), k_norm.expand(kv_heads, -1)))
        qk = F.rms_norm(qk, qk.shape[-1:], None, eps) * scale
    q, k = rotate(qk, *turn.unsqueeze(-2).chunk(2, -1)).split((heads, kv_heads), -2)
    return q, k, v


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up ``[..., F]`` of gate and up ``[..., 2 F]`` (Shazeer 2020)."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def logsumexp(logits_CV: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Return log sum exp ``[C]`` of logits ``[C, V]``, and the entropy ``[C]`` of their softmax, None unless
    requested. Logits may be -inf."""
    lse_C = logits_CV.logsumexp(-1)
    if not entropy:
        return lse_C, None
    prob_CV = (logits_CV - lse_C[:, None]).exp_()
    return lse_C, lse_C - torch.linalg.vecdot(prob_CV, logits_CV.masked_fill(logits_CV == -torch.inf, 0.0))


def logits_gradient(logits_CV: Tensor, target_C: Tensor, lse_C: Tensor, slope_C: Tensor) -> Tensor:
    """Overwrite logits by d loss / d logits = slope (onehot(target) - softmax), and return them.

    logits: float32 ``[C, V]``, contiguous; target: int64 ``[C]``; lse: ``logsumexp`` of the logits, float32 ``[C]``;
    slope: d loss / d logp of the target, float32 ``[C]``.
    """
    grad_CV = logits_CV.sub_(lse_C[:, None]).exp_().mul_(-slope_C[:, None])
    return grad_CV.scatter_add_(1, target_C[:, None], slope_C[:, None])


@dataclass(frozen=True)
class Operators:
    """The functions of this file, or replacements that compute the same. Autograd differentiates all of them but
    ``logsumexp`` and ``logits_gradient``."""

    add_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]] = add_norm
    split_heads: Callable[..., tuple[Tensor, Tensor, Tensor]] = split_heads
    swiglu: Callable[[Tensor], Tensor] = swiglu
    logsumexp: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]] = logsumexp
    logits_gradient: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = logits_gradient
    attention: Callable[[Ragged, Tensor, Tensor, Tensor], Tensor] = Ragged.attend


TORCH = Operators()
_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
_CUDA_MATMUL: Any = torch.backends.cuda.matmul


@contextmanager
def products_in(operands: str) -> Iterator[None]:
    """Context in which matrix products of float32 tensors round their operands to ``operands`` (``float32`` or
    ``bfloat16``).

    On a CPU sums and results are float32, and the setting applies to all threads of the process. It has no effect if
    torch lacks kernels for it: with torch 2.13 on x86 they need AMX; with ``avx512_bf16`` alone, ``native/fused.py``
    computes a policy's matrices. On a GPU this is torch's autocast in this thread: results are rounded to bfloat16 too,
    except logits, whose operands are rounded to TF32.
    """
    if operands != "bfloat16":
        yield
        return
    before = _MATMUL.fp32_precision, _CUDA_MATMUL.fp32_precision
    _MATMUL.fp32_precision, _CUDA_MATMUL.fp32_precision = "bf16", "tf32"
    # No cache: a copy that was made without a gradient (a teacher reads hints) would be used where one is needed.
    on_gpu = torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if torch.cuda.is_available() else nullcontext()
    try:
        with on_gpu:
            yield
    finally:
        _MATMUL.fp32_precision, _CUDA_MATMUL.fp32_precision = before
