"""Settings of evaluation."""

from __future__ import annotations

from pydantic import Field, field_validator

from woodshed.record.settings import Settings


class EvaluateSettings(Settings):
    """Held-out tasks, before and after RL. Raw outcomes, in the training harness."""

    tasks: int = Field(default=128, ge=1)
    """Held-out tasks."""
    samples: int = Field(default=8, ge=1)
    """Samples per task: pass@1 is their mean, best-of-k uses all."""
    package_samples: int = Field(default=1, ge=0)
    """Samples per real-package task when packages are not the main task (transfer); 0 skips them."""
    temperatures: tuple[float, ...] = (1.0,)
    """Sampling temperatures. Of several, each policy gets the one at which it does best on the development tasks."""
    dev_tasks: int = Field(default=64, ge=1)
    """Development tasks; not used with a single temperature."""
    dev_samples: int = Field(default=4, ge=1)
    """Samples per development task and temperature."""
    baselines: bool = False
    """Also train and evaluate what RL has to beat: SFT on all demonstrations, SFT on the verified ones, and SFT on the
    solved ones of as many rollouts as RL had."""
    rounds: bool = True
    """Also evaluate what each round of RL before the last ends with (``rl.rounds``)."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes at once."""

    @field_validator("temperatures")
    @classmethod
    def _usable(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or min(value) < 0 or len(set(value)) < len(value):
            raise ValueError("give at least one temperature, each once, none below 0")
        return tuple(sorted(value))
