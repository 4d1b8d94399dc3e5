"""Configuration of the trainer process. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from woodshed.record.settings import Device, Place, Settings
from woodshed.weights.settings import WeightSettings

from .settings import TrainSettings


class WorkerConfig(Settings):
    """The JSON file given to ``python -m woodshed.train.worker``."""

    policy: Path
    """Hugging Face directory of the policy that training starts from (PolicyVersion ``start``)."""

    start: int = Field(default=0, ge=0)
    """Number of steps of earlier rounds, before the first batch. Schedules begin here."""

    batches: Path
    """Folder in which ``step-000001.safetensors``, ``step-000002.safetensors``, ... appear."""

    weights: Place
    """Folder or ``s3://bucket/prefix`` of the weight chain; version n is what training on batch n made."""

    checkpoints: Path
    """Folder of the checkpoints."""

    metrics: Path
    """JSON Lines file, one line per step."""

    train: TrainSettings = TrainSettings()
    """Settings of the training step."""

    chain: WeightSettings = WeightSettings()
    """Settings of publishing."""

    steps: int | None = Field(default=None, ge=0)
    """Stop after this step; with None, train until SIGTERM. 0 only publishes the policy as it is."""

    device: Device = "auto"
    """Device to train on; the weights are float32 everywhere."""

    threads: int = Field(default=1, ge=1)
    """Number of torch threads. Two processes that spin on the same cores slow each other down far more than twofold."""

    lock: Path | None = None
    """File to lock while computing; an engine on this machine computes only while the lock is free."""

    poll_seconds: float = Field(default=0.02, gt=0)
    """Interval between checks for the next batch, in seconds."""

    delete_batches: bool = False
    """Delete batches that every kept checkpoint already contains."""
