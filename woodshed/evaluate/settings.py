"""Settings of evaluation."""

from __future__ import annotations

from pydantic import Field

from woodshed.record.settings import Settings


class EvaluateSettings(Settings):
    """Held-out tasks, before and after RL. Raw outcomes, temperature as given, the training harness."""

    tasks: int = Field(default=128, ge=1)
    """Held-out tasks."""
    samples: int = Field(default=8, ge=1)
    """Samples per task: pass@1 is their mean, best-of-k uses all."""
    package_samples: int = Field(default=1, ge=0)
    """Samples per real-package task when packages are not the main task (transfer); 0 skips them."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes at once."""
