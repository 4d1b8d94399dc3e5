"""Pretraining and SFT: the same loop over examples with loss weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..policy.decoder import Decoder
from ..train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from ..train.trainer import Trainer
from .examples import Example, batches, count_batches


def supervised_settings(
    *,
    matrix_lr: float,
    other_lr: float,
    steps: int,
    floor: float,
    microbatch_tokens: int = 4096,
    recompute: bool = False,
) -> TrainSettings:
    """Muon for the matrices (AdamW for all where ``matrix_lr`` is 0), linear to ``floor`` times the peak."""
    kind = "muon" if matrix_lr else "adamw"
    optimizer = OptimizerSettings.model_validate({"kind": kind, "lr": other_lr, "muon_lr": matrix_lr or 0.02})
    schedule = ScheduleSettings(kind="linear", warmup_steps=min(10, steps // 4), total_steps=max(2, steps), floor=floor)
    return TrainSettings(
        optimizer=optimizer, schedule=schedule, entropy=False, microbatch_tokens=microbatch_tokens, recompute=recompute
    )


def train_on(
    decoder: Decoder,
    examples: list[Example],
    *,
    batch_tokens: int,
    epochs: int,
    seed: int,
    matrix_lr: float,
    other_lr: float,
    floor: float,
    metrics: Path,
    progress: Callable[[int, int, float], None],
    microbatch_tokens: int = 4096,
    recompute: bool = False,
) -> dict[str, float]:
    """Train in place; ``progress`` gets (step, steps, smoothed loss). Loss and speed of the run come back."""
    steps = count_batches(examples, batch_tokens, seed=seed, epochs=epochs)
    settings = supervised_settings(
        matrix_lr=matrix_lr, other_lr=other_lr, steps=steps, floor=floor, microbatch_tokens=microbatch_tokens,
        recompute=recompute,
    )  # fmt: skip
    trainer = Trainer(decoder, settings)
    torch.manual_seed(seed)
    metrics.parent.mkdir(parents=True, exist_ok=True)
    smooth, tokens, started = float("nan"), 0.0, time.monotonic()
    with metrics.open("w") as file:
        for batch in batches(examples, batch_tokens, seed=seed, epochs=epochs):
            result = trainer.step(batch)
            loss = result["loss"]
            smooth = loss if smooth != smooth else 0.95 * smooth + 0.05 * loss
            tokens += result["tokens"]
            file.write(json.dumps({"step": batch.step, "loss": loss, "lr": result["lr"]}) + "\n")
            if batch.step % 10 == 0 or batch.step == steps:
                progress(batch.step, steps, smooth)
    seconds = time.monotonic() - started
    return {"steps": steps, "loss": smooth, "tokens": tokens, "tokens_per_second": tokens / max(seconds, 1e-9)}
