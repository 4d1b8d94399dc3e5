"""The multi-token-prediction (MTP) head: distilled from the policy itself, on the conversations of SFT.

A checkpoint is written every minute; a process that was killed continues from the last one.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.hf import load_policy, save_policy
from woodshed.policy.mtp import MtpHead, load_mtp_state, mtp_state
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.stages import MtpSettings
from woodshed.record.run_directory import RunDirectory
from woodshed.train.batch import TrainBatch
from woodshed.train.checkpoint import latest_checkpoint, save_checkpoint
from woodshed.train.metrics_log import MetricsLog
from woodshed.train.mtp import distill
from woodshed.train.optim import Optimizer, lr_factor
from woodshed.train.packing import by_length
from woodshed.train.settings import OptimizerSettings, ScheduleSettings

from .examples import Example, batches, load_examples
from .pace import Every
from .policy import device_of


def distill_head(recipe: Recipe, run: RunDirectory) -> None:
    """Distil the MTP head of ``policy/sft`` and write it to ``mtp.safetensors`` there."""
    settings = recipe.learn.mtp
    policy = load_policy(run.policy("sft"), device=device_of(recipe), dtype=torch.float32)
    policy.decoder.requires_grad_(False)
    policy.mtp = MtpHead(policy.config, seed=recipe.seed, device=policy.decoder.device)
    optimizer = Optimizer(policy.mtp, OptimizerSettings(kind="adamw", lr=settings.lr))
    schedule = ScheduleSettings(kind="linear", warmup_steps=min(10, settings.steps // 4), total_steps=settings.steps)
    folder, log = run.stage_checkpoints("mtp"), MetricsLog(run.stage_metrics("mtp"))
    done, loss, agreed = 0, 0.0, 0.0
    if (found := latest_checkpoint(folder)) is not None:
        load_mtp_state(policy.mtp, found.model, name=str(found.path))
        optimizer.load_state(found.optimizer)
        done = found.step
        loss, agreed = found.state.get("loss", 0.0), found.state.get("agreement", 0.0)
    examples = load_examples(run.demonstrations / "examples.npz")
    show, save = Every(1.0), Every(60.0)
    for step, batch in enumerate(
        itertools.islice(_forever(examples, settings, recipe.seed), done, settings.steps), done + 1
    ):
        loss, agreed = distill_batch(policy.decoder, policy.mtp, batch, settings, recipe.learn.sft.microbatch_tokens)
        factor = lr_factor(step - 1, schedule)
        optimizer.step(factor)
        policy.mtp.zero_grad(set_to_none=True)
        log.append({"step": step, "loss": loss, "agreement": agreed, "lr": settings.lr * factor})
        if show() or step == settings.steps:
            run.write_progress("mtp", step, settings.steps, f"loss {loss:.3f}, {agreed:.0%} guessed right")
        if save():
            figures = {"loss": loss, "agreement": agreed}
            save_checkpoint(folder, step, mtp_state(policy.mtp), optimizer.state(), figures, keep=1, fsync=False)
    save_policy(policy, run.policy("sft"))
    shutil.rmtree(folder, ignore_errors=True)
    note = f"{agreed:.0%} of the next tokens guessed right"
    run.write_result_of("mtp", {"loss": loss, "agreement": agreed, "note": note})


def _forever(examples: list[Example], settings: MtpSettings, seed: int) -> Iterator[TrainBatch]:
    for epoch in itertools.count():
        yield from batches(examples, settings.batch_tokens, seed=seed + epoch)


def distill_batch(
    decoder: Decoder, head: MtpHead, batch: TrainBatch, settings: MtpSettings, microbatch_tokens: int
) -> tuple[float, float]:
    """Add one batch's gradient to the head's ``.grad``; return (loss, agreement), see ``train.mtp.distill``."""
    weights_N = (batch.weights["ce"] > 0).astype(np.float32)
    lengths = np.diff(batch.offsets)
    denominator = float(weights_N.sum())
    loss = agreed = 0.0
    for rows in by_length(lengths, microbatch_tokens):
        tokens_BT, weights_BT = _padded(batch, weights_N, rows, int(lengths[rows].max()))
        parts = distill(
            decoder,
            head,
            tokens_BT.to(decoder.device),
            weights_BT.to(decoder.device),
            depth=settings.depth,
            denominator=denominator,
        )
        loss, agreed = loss + parts[0], agreed + parts[1]
    return loss, agreed


def _padded(batch: TrainBatch, weights_N: np.ndarray, rows: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
    """Return tokens int64 and weights float32, both ``[B, T]``; the weight of token t + 1 is at t, where it is
    predicted."""
    tokens, weights = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        start, end = batch.offsets[row], batch.offsets[row + 1]
        tokens[i, : end - start] = batch.tokens[start:end]
        weights[i, : end - start - 1] = weights_N[start + 1 : end]
    return torch.from_numpy(tokens), torch.from_numpy(weights)
