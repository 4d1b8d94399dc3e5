"""Optimizers (AdamW alone, or Muon for the matrices and AdamW for the rest) and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead

from .muon import Muon, is_matrix
from .settings import OptimizerSettings, ScheduleSettings


class Optimizer:
    """Updates a decoder, or its MTP head, from ``.grad``. The state is a flat dict of tensors, saved as one file."""

    def __init__(self, decoder: Decoder | MtpHead, settings: OptimizerSettings) -> None:
        self.settings = settings
        named = {name: p for name, p in decoder.named_parameters() if p.requires_grad}
        matrices = {n: p for n, p in named.items() if settings.kind == "muon" and is_matrix(n, p)}
        self.muon = Muon(matrices, decoder.config, settings)
        self.others = {n: p for n, p in named.items() if n not in matrices}
        decay = [p for p in self.others.values() if p.ndim >= 2]
        plain = [p for p in self.others.values() if p.ndim < 2]
        self.adamw = torch.optim.AdamW(
            [{"params": decay, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )

    def step(self, factor: float) -> None:
        """Update the parameters once, with every learning rate multiplied by ``factor``."""
        for group in self.adamw.param_groups:
            group["lr"] = self.settings.lr * factor
        self.adamw.step()
        self.muon.step(self.settings.muon_lr * factor)

    def state(self) -> dict[str, Tensor]:
        """Return ``adamw.PARAMETER.{step, exp_avg, exp_avg_sq}`` and ``muon.PARAMETER.momentum``, without copying."""
        out = {f"muon.{name}.momentum": m for name, m in self.muon.momentum.items()}
        for name, parameter in self.others.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                out[f"adamw.{name}.{key}"] = value
        return out

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load a state made by ``state`` for the same parameters. Raises ValueError if names or shapes differ."""
        left = dict(state)
        for name, momentum in self.muon.momentum.items():
            momentum.copy_(_take(left, f"muon.{name}.momentum", momentum))
        for name, parameter in self.others.items():
            if f"adamw.{name}.step" not in left:
                continue  # The parameter had no update yet.
            self.adamw.state[parameter] = {
                "step": _take(left, f"adamw.{name}.step", None).to(parameter.device, copy=True),  # fused: on its device
                "exp_avg": _take(left, f"adamw.{name}.exp_avg", parameter).to(parameter, copy=True),
                "exp_avg_sq": _take(left, f"adamw.{name}.exp_avg_sq", parameter).to(parameter, copy=True),
            }
        if left:
            raise ValueError(f"optimizer state holds {sorted(left)[0]!r}, which this policy and optimizer do not have")


def _take(state: dict[str, Tensor], name: str, like: Tensor | None) -> Tensor:
    value = state.pop(name, None)
    if value is None:
        raise ValueError(f"optimizer state lacks {name!r}; was it saved with another optimizer.kind?")
    if like is not None and value.shape != like.shape:
        raise ValueError(f"optimizer state {name!r} has shape {tuple(value.shape)}, expected {tuple(like.shape)}")
    return value


def lr_factor(step: int, settings: ScheduleSettings) -> float:
    """Return the learning-rate factor of step ``step`` (from 0): linear warm-up, then constant, or linear or cosine
    decay to the floor.

    With linear or cosine the last step of the stage, ``total_steps - 1``, is one decrement above the floor, so no
    step is spent at a factor of 0.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.kind == "constant":
        return 1.0
    span = settings.total_steps - settings.warmup_steps
    done = min(1.0, (step - settings.warmup_steps) / span)
    left = 1 - done if settings.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.floor + (1 - settings.floor) * left
