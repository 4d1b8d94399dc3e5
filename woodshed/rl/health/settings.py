"""Settings of the alarms: action and threshold of each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from woodshed.record.settings import Settings

Action = Literal["pause", "warn", "off"]
"""``pause`` ends the stage, which can be resumed; ``warn`` only reports."""


class AlarmSettings(Settings):
    """Alarms over the metrics of all steps so far. They can be changed for an existing run."""

    window: int = Field(default=4, ge=1)
    """Number of newest steps over which an alarm takes a mean."""
    baseline: int = Field(default=8, ge=1)
    """Number of first steps of the run, or of the round (``rl.rounds``), that later ones are compared with."""

    stall: Action = "warn"
    """No batch was decided and no step was trained for much longer than usual."""
    stall_factor: float = Field(default=6.0, gt=1)
    """Waiting time that counts as a stall, as a multiple of the median interval between batches."""
    stall_seconds: float = Field(default=120.0, ge=0)
    """Minimum time without progress, in seconds, that counts as a stall."""
    infra: Action = "warn"
    """Rollouts end by infrastructure errors; above ``rl.max_infra_rate`` the run stops."""
    infra_share: float = Field(default=0.05, ge=0, le=1)
    """Share of rollouts ended by infrastructure errors above which the alarm fires."""
    flat: Action = "warn"
    """Groups have equal rewards, so that all their token weights are 0."""
    flat_share: float = Field(default=0.5, ge=0, le=1)
    """Share of such groups above which the alarm fires; groups that dynamic sampling replaced count."""
    truncation: Action = "warn"
    """Episodes end at a limit instead of by the agent's own decision."""
    truncation_share: float = Field(default=0.5, ge=0, le=1)
    """Share of episodes with the status ``limit`` or ``timeout`` above which the alarm fires."""

    entropy: Action = "warn"
    """The entropy of the policy collapses."""
    entropy_floor: float = Field(default=0.3, gt=0)
    """The alarm fires below this share of the entropy of the first steps."""
    ratio: Action = "pause"
    """Importance ratios (trained policy to sampling policy) blow up."""
    least_ess: float = Field(default=0.1, ge=0, le=1)
    """The alarm fires below this effective sample size, as a share of the tokens (1: on-policy)."""
    most_ratio: float = Field(default=10.0, gt=1)
    """The alarm fires if the 99th percentile of the ratio is above this."""
    mismatch: Action = "warn"
    """Trainer and engine compute different log-probabilities with the same weights, or choose different experts."""
    mismatch_k3: float = Field(default=1e-3, gt=0)
    """The alarm fires if ``k3`` of a step without stale tokens is above this. The first step of a run is one."""
    refused_share: float = Field(default=0.01, ge=0, le=1)
    """The alarm fires if ``train.replay_ratio`` keeps out more than this share of the engine's experts."""
    pass_rate: Action = "warn"
    """The pass rate jumps: a reward hack was found, or the policy broke."""
    pass_rate_jump: float = Field(default=0.3, gt=0, le=1)
    """The alarm fires if the means of the last two windows differ by more than this."""
    edits: Action = "warn"
    """Episodes no longer edit files."""
    edits_floor: float = Field(default=0.5, gt=0)
    """The alarm fires below this share of the edit rate (share of episodes with an edit) of the first steps."""
    tools: Action = "warn"
    """The tool mix collapses, for example to the terminal alone."""
    tools_floor: float = Field(default=0.5, gt=0)
    """The alarm fires below this share of the effective number of tools of the first steps (exp of the entropy, in
    nats, of the mix of calls)."""

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
            "mismatch": self.mismatch,
            "pass_rate": self.pass_rate,
            "edits": self.edits,
            "tools": self.tools,
        }
