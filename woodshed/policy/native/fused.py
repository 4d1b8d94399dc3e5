"""Operators for training on a CPU: autograd functions on the kernels of ``fused.cpp``.

What lies between matrix products takes one pass over memory each, where torch's operators take several. Attention and
linear layers know lengths and processors that torch's do not. All compute in float32 with torch's number of threads;
results are bit-identical for any number.
"""

from __future__ import annotations

import functools
import logging
from ctypes import CDLL, c_float, c_int, c_long, c_void_p
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from woodshed.policy import operators
from woodshed.policy.attention import Ragged
from woodshed.policy.decoder import Decoder
from woodshed.policy.operators import Operators
from woodshed.policy.processor import has_flags, made_by_amd

from .build import COMPILE_SECONDS, NoKernels, Sources, library

log = logging.getLogger(__name__)

SOURCES = Sources(Path(__file__).parent / "fused.cpp", ("ragged.h", "linear.h"))


@functools.cache
def _library() -> CDLL:
    """Load the kernels, waiting for their compilation: a step must not be computed by torch now and by the kernels
    after a restart."""
    return library(SOURCES, COMPILE_SECONDS)


def _call(name: str, *arguments: Tensor | int | float | None) -> None:
    """Call a kernel. Tensors must be contiguous and outlive the call."""
    passed: list[Any] = [c_int(torch.get_num_threads())]
    for value in arguments:
        if isinstance(value, float):
            passed.append(c_float(value))
        elif isinstance(value, int):
            passed.append(c_long(value))
        else:
            passed.append(c_void_p(None if value is None else value.data_ptr()))
    getattr(_library(), f"woodshed_{name}")(*passed)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, width = x.contiguous(), x.shape[-1]
        rows = x.numel() // width
        total = x.view_as(x) if delta is None else torch.empty_like(x)
        delta = None if delta is None else delta.contiguous()
        out, scale = torch.empty_like(x), x.new_empty(rows)
        _call("add_norm", rows, width, eps, x, delta, weight, total, out, scale)
        ctx.save_for_backward(total, weight, scale)
        ctx.added = delta is not None
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, scale = ctx.saved_tensors
        if grad is None:
            return grad_total, grad_total if ctx.added else None, None, None
        grad, grad_x, grad_weight = grad.contiguous(), torch.empty_like(total), torch.empty_like(weight)
        grad_total = None if grad_total is None else grad_total.contiguous()
        sizes = (len(scale), total.shape[-1])
        _call("add_norm_backward", *sizes, grad, grad_total, total, weight, scale, grad_x, grad_weight)
        return grad_x, grad_x if ctx.added else None, grad_weight, None


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        turn: Tensor,
        heads: int,
        kv_heads: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv, turn, leading = qkv.contiguous(), turn.contiguous(), qkv.shape[:-1]
        width, rows = turn.shape[-1] // 2, leading.numel()
        ctx.sizes = (rows, heads, kv_heads, width)
        q = qkv.new_empty(*leading, heads, width)
        k, v = (qkv.new_empty(*leading, kv_heads, width) for _ in range(2))
        scale = qkv.new_empty(rows, heads + kv_heads)
        _call("split_heads", *ctx.sizes, eps, qkv, q_norm, k_norm, turn, q, k, v, scale)
        ctx.save_for_backward(qkv, q_norm, k_norm, turn, scale)
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, q_norm, k_norm, turn, scale = ctx.saved_tensors
        grads_qkv = [grad.contiguous() for grad in grads]
        grad_qkv = torch.empty_like(qkv)
        grad_norms = [None if norm is None else torch.empty_like(norm) for norm in (q_norm, k_norm)]
        _call("split_heads_backward", *ctx.sizes, *grads_qkv, qkv, q_norm, k_norm, turn, scale, grad_qkv, *grad_norms)
        return grad_qkv, *grad_norms, None, None, None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)
        _call("swiglu", out.shape[:-1].numel(), out.shape[-1], gate_up, out)
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad, grad_gate_up = grad.contiguous(), torch.empty_like(gate_up)
        _call("swiglu_backward", grad.shape[:-1].numel(), grad.shape[-1], grad, gate_up, grad_gate_up)
        return grad_gate_up


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Ragged, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        starts, at = layout.starts, None
        counts = starts
        if len(q) != layout.size:
            counts, at = layout.end_counts, layout.ends
        ctx.sizes = (len(layout.lengths), q.shape[1], k.shape[1], q.shape[2], q.shape[2] ** -0.5)
        ctx.places = (starts, counts, at, *layout.gathered)
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:2])
        _call("attention", *ctx.sizes, *ctx.places, q, k, v, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        computed = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in computed[:3]]
        _call("attention_backward", *ctx.sizes, *ctx.places, grad.contiguous(), *computed, *grads)
        return None, *grads


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, half: bool) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.half = int(half)
        y = x.new_empty(*x.shape[:-1], len(weight))
        _call("linear", ctx.half, x.shape[:-1].numel(), *weight.shape, x, weight, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_weight = torch.empty_like(weight)
        sizes = (ctx.half, x.shape[:-1].numel(), *weight.shape)
        _call("linear_backward", *sizes, grad.contiguous(), x, weight, grad_x, grad_weight)
        return grad_x, grad_weight, None


def _fits(x: Tensor) -> bool:
    """Return whether the kernels can compute on ``x``: a policy may have been moved or converted since it was fused."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def _add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _AddNorm.apply(x, delta, weight, eps) if _fits(x) else operators.add_norm(x, delta, weight, eps)


def _split_heads(qkv: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _SplitHeads.apply(qkv, *rest) if _fits(qkv) else operators.split_heads(qkv, *rest)


def _swiglu(gate_up: Tensor) -> Tensor:
    return _SwiGLU.apply(gate_up) if _fits(gate_up) else operators.swiglu(gate_up)


def _logsumexp(logits_CV: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    if not _fits(logits_CV):
        return operators.logsumexp(logits_CV, entropy)
    logits_CV = logits_CV.contiguous()
    lse_C = logits_CV.new_empty(len(logits_CV))
    entropy_C = torch.empty_like(lse_C) if entropy else None
    _call("logsumexp", *logits_CV.shape, logits_CV, lse_C, entropy_C)
    return lse_C, entropy_C


def _logits_gradient(logits_CV: Tensor, target_C: Tensor, lse_C: Tensor, slope_C: Tensor) -> Tensor:
    if not _fits(logits_CV) or not logits_CV.is_contiguous():
        return operators.logits_gradient(logits_CV, target_C, lse_C, slope_C)
    _call("logits_gradient", *logits_CV.shape, target_C.contiguous(), lse_C, slope_C.contiguous(), logits_CV)
    return logits_CV


def _attention(layout: Ragged, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not _fits(q) or q.shape[-1] % _library().woodshed_lanes():
        return layout.attend(q, k, v)
    return _Attention.apply(layout, q, k, v)


def _linear(half: bool, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    outputs, width = weight.shape
    if not (_fits(x) and _fits(weight)) or outputs % 2 or width % _library().woodshed_lanes():
        return F.linear(x, weight, bias)
    y = _Linear.apply(x, weight, half)
    return y if bias is None else y + bias


FUSED = Operators(_add_norm, _split_heads, _swiglu, _logsumexp, _logits_gradient, _attention)


def fuse(decoder: Decoder, products: str = "float32") -> None:
    """Compute ``decoder`` with the fused operators, if it is float32 on a CPU and they can be compiled here.

    Where torch's matrix products are slower, these take their place: float32 ones on AMD (see ``made_by_amd``), and
    ``products`` bfloat16 on processors that multiply it and have no AMX, for which torch 2.13 has no kernels.
    """
    if decoder.device.type != "cpu" or decoder.dtype != torch.float32:
        return
    try:
        _library()
    except NoKernels as why:
        log.warning("torch's operators train, more slowly than fused ones: %s", why)
        return
    half = products == "bfloat16"
    ours = has_flags("avx512_bf16") and not has_flags("amx_bf16") if half else made_by_amd()
    decoder.compute_with(linear=functools.partial(_linear, half) if ours else None, operators=FUSED)
    decoder.linear = F.linear  # few tokens at a time would not pay for arranging its matrix
