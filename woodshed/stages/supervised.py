"""Pretraining and SFT: the same loop over examples with loss weights.

A checkpoint is written every minute; a process that was killed continues from the last one, to bitwise the same
weights.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.train.checkpoint import latest_checkpoint, save_checkpoint
from woodshed.train.metrics_log import MetricsLog
from woodshed.train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer

from .examples import Example, batches, count_batches
from .pace import Every


def supervised_settings(
    *,
    matrix_lr: float,
    other_lr: float,
    steps: int,
    floor: float,
    microbatch_tokens: int = 4096,
    recompute: bool = False,
    products: Literal["float32", "bfloat16"] = "float32",
) -> TrainSettings:
    """Return settings with Muon for the matrices (AdamW for everything if ``matrix_lr`` is 0) and a learning rate that
    falls linearly to ``floor`` times the peak."""
    kind = "muon" if matrix_lr else "adamw"
    optimizer = OptimizerSettings.model_validate({"kind": kind, "lr": other_lr, "muon_lr": matrix_lr or 0.02})
    schedule = ScheduleSettings(kind="linear", warmup_steps=min(10, steps // 4), total_steps=max(2, steps), floor=floor)
    return TrainSettings(
        optimizer=optimizer,
        schedule=schedule,
        entropy=False,
        microbatch_tokens=microbatch_tokens,
        recompute=recompute,
        products=products,
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
    checkpoints: Path,
    progress: Callable[[int, int, float], None],
    microbatch_tokens: int = 4096,
    recompute: bool = False,
    products: Literal["float32", "bfloat16"] = "float32",
    checkpoint_seconds: float = 60.0,
    progress_seconds: float = 1.0,
) -> dict[str, float]:
    """Train ``decoder`` in place; return number of steps, smoothed loss, tokens, and tokens per second.

    ``progress`` is called with (step, steps, smoothed loss). ``checkpoints``: folder for this function alone; training
    continues from a checkpoint in it, and the folder is deleted at the end.
    """
    steps = count_batches(examples, batch_tokens, seed=seed, epochs=epochs)
    settings = supervised_settings(
        matrix_lr=matrix_lr,
        other_lr=other_lr,
        steps=steps,
        floor=floor,
        microbatch_tokens=microbatch_tokens,
        recompute=recompute,
        products=products,
    )
    trainer = Trainer(decoder, settings)
    torch.manual_seed(seed)
    log = MetricsLog(metrics)
    smooth, tokens, seconds = float("nan"), 0.0, 0.0
    if (found := latest_checkpoint(checkpoints)) is not None:
        load_hf_state(decoder, found.model, name=str(found.path))
        trainer.load_state(found.optimizer, found.state)
        smooth, tokens, seconds = (found.state[k] for k in ("smooth", "tokens", "seconds"))
    started = time.monotonic()
    show, save = Every(progress_seconds), Every(checkpoint_seconds)
    left = itertools.islice(batches(examples, batch_tokens, seed=seed, epochs=epochs), trainer.step_count, None)
    for batch in left:
        result = trainer.step(batch)
        loss = result["loss"]
        smooth = loss if smooth != smooth else 0.95 * smooth + 0.05 * loss
        tokens += result["tokens"]
        log.append({"step": batch.step, "loss": loss, "lr": result["lr"]})
        if show() or batch.step == steps:
            progress(batch.step, steps, smooth)
        if save():
            tensors, rest = trainer.state()
            rest |= {"smooth": smooth, "tokens": tokens, "seconds": seconds + time.monotonic() - started}
            save_checkpoint(checkpoints, batch.step, hf_state(decoder), tensors, rest, keep=1, fsync=False)
    shutil.rmtree(checkpoints, ignore_errors=True)
    seconds += time.monotonic() - started
    return {"steps": steps, "loss": smooth, "tokens": tokens, "tokens_per_second": tokens / max(seconds, 1e-9)}
