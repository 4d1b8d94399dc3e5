"""What the trainer process is told. Imports no torch."""

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
    """Steps before the first batch, of an earlier round. Schedules begin here."""

    batches: Path
    """Folder in which ``step-000001.safetensors``, ``step-000002.safetensors``, ... appear."""

    weights: Place
    """Folder or ``s3://bucket/prefix`` of the weight chain; version n is what training on batch n made."""

    checkpoints: Path
    """Folder of the checkpoints."""

    metrics: Path
    """JSON Lines file, one line per step."""

    train: TrainSettings = TrainSettings()
    """How to train."""

    chain: WeightSettings = WeightSettings()
    """How to publish."""

    steps: int | None = Field(default=None, ge=0)
    """Stop after this step; None goes on until SIGTERM. 0 publishes the policy as it is."""

    device: Device = "auto"
    """Where to train; the weights are float32 everywhere."""

    threads: int = Field(default=1, ge=1)
    """Torch threads. Two processes that spin on the same cores slow each other down far more than twofold."""

    lock: Path | None = None
    """File to lock while computing; an engine on this machine uses the cores while it is free."""

    poll_seconds: float = Field(default=0.02, gt=0)
    """How often to look for the next batch."""

    delete_batches: bool = False
    """Delete batches that every kept checkpoint already contains."""
