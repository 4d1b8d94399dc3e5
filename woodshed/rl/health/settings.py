"""Settings of the alarms: what each does, and from which value on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.record.settings import Settings

Action = Literal["pause", "warn", "off"]
"""``pause`` ends the stage, resumably; ``warn`` tells and goes on."""


class AlarmSettings(Settings):
    """Alarms over the metrics of all steps so far. They can be changed for an existing run."""

    window: int = Field(default=4, ge=1)
    """Newest steps over which an alarm takes a mean."""
    baseline: int = Field(default=8, ge=1)
    """First steps of the run that later ones are compared with."""

    stall: Action = "warn"
    """No batch was decided and no step was trained for much longer than usual."""
    stall_factor: float = Field(default=6.0, gt=1)
    """Times the median interval between batches that counts as a stall."""
    stall_seconds: float = Field(default=120.0, ge=0)
    """Seconds without progress that are never a stall."""
    infra: Action = "warn"
    """Rollouts end by infrastructure errors; above ``rl.max_infra_rate`` the run stops."""
    infra_share: float = Field(default=0.05, ge=0, le=1)
    """Share of rollouts that end so."""
    flat: Action = "warn"
    """Groups whose rollouts weigh nothing because their rewards are equal."""
    flat_share: float = Field(default=0.5, ge=0, le=1)
    """Share of groups, those that dynamic sampling replaced included."""
    truncation: Action = "warn"
    """Episodes end at a limit instead of by the agent's own decision."""
    truncation_share: float = Field(default=0.5, ge=0, le=1)
    """Share of episodes with the status ``limit`` or ``timeout``."""

    entropy: Action = "warn"
    """Entropy of the policy collapses."""
    entropy_floor: float = Field(default=0.3, gt=0)
    """Share of the entropy of the first steps."""
    ratio: Action = "pause"
    """Ratios of the trained policy to the one that sampled blow up."""
    least_ess: float = Field(default=0.1, ge=0, le=1)
    """Effective sample size as share of the tokens (1: on-policy)."""
    most_ratio: float = Field(default=10.0, gt=1)
    """99th percentile of the ratio."""
    pass_rate: Action = "warn"
    """The pass rate jumps: a reward hack was found, or the policy broke."""
    pass_rate_jump: float = Field(default=0.3, gt=0, le=1)
    """Difference between the means of the last two windows."""
    edits: Action = "warn"
    """Episodes no longer edit files."""
    edits_floor: float = Field(default=0.5, gt=0)
    """Share of the edit rate (episodes with an edit) of the first steps."""
    tools: Action = "warn"
    """The tool mix collapses, to the terminal for example."""
    tools_floor: float = Field(default=0.5, gt=0)
    """Share of the effective number of tools of the first steps: exp of the entropy of the mix of calls, in nats."""

    @property
    def actions(self) -> dict[str, Action]:
        """Action by name of the alarm."""
        return {
            "stall": self.stall,
            "infra": self.infra,
            "flat": self.flat,
            "truncation": self.truncation,
            "entropy": self.entropy,
            "ratio": self.ratio,
            "pass_rate": self.pass_rate,
            "edits": self.edits,
            "tools": self.tools,
        }
