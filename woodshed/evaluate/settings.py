"""Settings of evaluation."""

from __future__ import annotations

from pydantic import Field, field_validator

from woodshed.record.settings import Settings


class EvaluateSettings(Settings):
    """Evaluation on held-out tasks before and after RL: raw outcomes, in the training harness."""

    tasks: int = Field(default=128, ge=1)
    """Number of held-out tasks."""
    samples: int = Field(default=8, ge=1)
    """Number of samples per task: pass@1 is their mean, best-of-k uses all."""
    package_samples: int = Field(default=1, ge=0)
    """Number of samples per real-package task if packages are not the main tasks (transfer); 0 skips them."""
    temperatures: tuple[float, ...] = (1.0,)
    """Sampling temperatures. If there are several, each policy is evaluated at the one that is best for it on the
    development tasks."""
    dev_tasks: int = Field(default=64, ge=1)
    """Number of development tasks; not used with a single temperature."""
    dev_samples: int = Field(default=4, ge=1)
    """Number of samples per development task and temperature."""
    baselines: bool = False
    """Also train and evaluate the baselines that RL has to beat: SFT on all demonstrations, SFT on the verified ones,
    and SFT on the solved rollouts among as many as RL had."""
    rounds: bool = True
    """Also evaluate the policy at the end of each round of RL before the last (``rl.rounds``)."""
    concurrency: int = Field(default=64, ge=1)
    """Number of episodes at the same time."""

    @field_validator("temperatures")
    @classmethod
    def _usable(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or len(set(value)) < len(value) or not all(0 <= at <= 2 for at in value):
            raise ValueError("give at least one temperature, each once, from 0 to 2, as the policy server takes them")
        return tuple(sorted(value))
