"""The policies that a run compares on its held-out tasks, and the gain over the best of the baselines.

A gain of RL counts only over the best of what the same data and the same rollouts give without RL.
"""

from __future__ import annotations

from collections.abc import Sequence

BEFORE = "before"
"""Where RL starts."""
OTHER = "other-sft"
"""SFT on all demonstrations where RL starts from the verified ones, and the reverse."""
REJECTION = "rejection"
"""SFT on the solved ones of as many rollouts as RL had (rejection sampling, also called RFT or expert iteration)."""
AFTER = "after"
"""Where RL ends."""
ARMS = (OTHER, BEFORE, REJECTION, AFTER)


def titles(verified: bool) -> dict[str, str]:
    """What people read, by evaluation. ``verified``: RL starts from SFT on the verified demonstrations."""
    start, other = ("SFT, verified", "SFT, all") if verified else ("SFT, all", "SFT, verified")
    return {OTHER: other, BEFORE: start, REJECTION: "SFT, rejection", AFTER: "RL"}


def stage_of(name: str) -> str:
    """The stage that runs the evaluation ``name``: the baselines have another stage of that name, which trains them."""
    return f"{name}-evaluation" if name in (OTHER, REJECTION) else name


def best_baseline(pass1: dict[str, float], *, arms: Sequence[str] = (OTHER, BEFORE, REJECTION)) -> str:
    """The baseline with the best held-out pass@1 of those that were evaluated. KeyError where none was."""
    known = [arm for arm in arms if arm in pass1]
    if not known:
        raise KeyError("no baseline was evaluated")
    return max(known, key=lambda arm: pass1[arm])
