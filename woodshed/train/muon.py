"""Muon: orthogonalised momentum (Jordan 2024, https://kellerjordan.github.io/posts/muon/).

Matrices of the same shape are orthogonalised as one batch: at small widths the number of calls dominates the cost.
Fused parameters are split first, so that the result is that of separate matrices: q, k, v; gate and up; every
expert; every head with ``muon_per_head`` (Composer 2.5 orthogonalises attention per head and expert matrices per
expert).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from woodshed.policy.config import DecoderConfig

from .settings import OptimizerSettings

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices_NOI: Tensor, steps: int = 5) -> Tensor:
    """Return approximately U V^T of every matrix G = U S V^T of ``[N, out, in]``, in the same dtype.

    Newton-Schulz iteration with Jordan's quintic: singular values end between about 0.7 and 1.2, which is as good for
    training as exactly 1. A zero matrix stays zero.
    """
    a, b, c = COEFFICIENTS
    tall = matrices_NOI.shape[1] > matrices_NOI.shape[2]
    x = matrices_NOI.mT if tall else matrices_NOI
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether Muon updates this parameter: True for matrices inside the layers, except routers."""
    leaf = name.rsplit(".", 1)[-1]
    return parameter.ndim >= 2 and leaf not in ("embed", "head", "router")


def views(name: str, tensor: Tensor, config: DecoderConfig, *, per_head: bool) -> list[Tensor]:
    """Return the matrices that a parameter of the decoder consists of, as views ``[n, out, in]`` into it."""
    leaf = name.rsplit(".", 1)[-1]
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    if leaf == "qkv":
        if per_head:
            return [tensor.unflatten(0, (-1, width))]
        return [part[None] for part in tensor.split([heads * width, kv_heads * width, kv_heads * width])]
    if leaf == "out" and per_head:
        return [tensor.unflatten(1, (heads, width)).transpose(0, 1)]
    stacked = tensor if tensor.ndim == 3 else tensor[None]
    return list(stacked.chunk(2, dim=1)) if leaf == "gate_up" else [stacked]


class Muon:
    """Muon over named parameters of a decoder; its only state is ``momentum``."""

    def __init__(self, parameters: Mapping[str, Tensor], config: DecoderConfig, settings: OptimizerSettings) -> None:
        self.parameters, self.config, self.settings = dict(parameters), config, settings
        self.momentum = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters from ``.grad``; those without a gradient stay unchanged."""
        s = self.settings
        batches: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            momentum = self.momentum[name].lerp_(parameter.grad, 1 - s.muon_momentum)
            update = parameter.grad.lerp(momentum, s.muon_momentum) if s.muon_nesterov else momentum
            if s.muon_weight_decay:
                parameter.mul_(1 - lr * s.muon_weight_decay)
            pairs = zip(*(views(name, t, self.config, per_head=s.muon_per_head) for t in (parameter, update)))
            for target, source in pairs:
                batches.setdefault((target.shape[1], target.shape[2]), []).append((target, source))
        for (rows, columns), pairs_of_shape in batches.items():
            stacked = torch.cat([source for _, source in pairs_of_shape])
            flat = orthogonalise(stacked, s.muon_steps)
            pieces = flat.split([len(target) for target, _ in pairs_of_shape])
            if s.muon_scale == "shape":
                scale = max(1.0, rows / columns) ** 0.5
            else:
                scale = 0.2 * max(rows, columns) ** 0.5
            for (target, _), piece in zip(pairs_of_shape, pieces):
                target.add_(piece, alpha=-lr * scale)
