"""Settings of the model that reads training episodes."""

from __future__ import annotations

from pydantic import Field

from woodshed.grading.settings import JudgeSettings
from woodshed.record.settings import Settings

POLICY = "policy"
"""Address of a reader that is the policy itself."""


class ReaderSettings(JudgeSettings):
    """The model that writes hints (the trigger ``reader`` of ``rl.hints``) and scores ``rl.rubrics``."""

    base_url: str = Field(pattern=r"^(policy|https?://[^\s]+)$")
    """Root of the server, with or without its ``/v1``; or ``policy``, the policy itself as it is at that time. Its
    answers are held to the required form by a grammar."""
    model: str = Field(default="policy", min_length=1)
    """Name of the model on that server; ignored for the policy itself."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the groups that are read, whole groups, since their rollouts are compared."""


class RubricSettings(Settings):
    """One aspect of behaviour that the reader scores, in a question of its own."""

    question: str = Field(min_length=10)
    """Question about the episode whose best answer is yes."""
    weight: float = Field(default=0.1, gt=0)
    """Largest absolute value of the term ``rubric_NAME``: the score is between -1 and 1."""
