"""The policies (arms) that a run compares on its held-out tasks: RL and its baselines, and which baseline counts.

A gain of RL counts only over the best policy that the same data and the same number of rollouts give without RL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ADOPT = "adopt"
"""Stage in which a run takes over the result of the run that it goes on from (``policy.source``)."""
BEFORE = "before"
"""Evaluation of the policy that RL starts from."""
OTHER = "other-sft"
"""SFT on all demonstrations if RL starts from the verified ones, on the verified ones otherwise."""
REJECTION = "rejection"
"""SFT on the solved rollouts among as many as RL had (rejection sampling, also called RFT or expert iteration)."""
SOLVED = "solved"
"""Stage of SFT on what RL solved (``learn.solved.after_rl``); the run's result is then the policy of this stage."""
AFTER = "after"
"""Evaluation of the run's result: the policy at the end of RL, or of SFT on what it solved."""
ALONE = "rl"
"""RL's own policy, if it is not the result."""


def in_round(name: str, number: int | None) -> str:
    """Return the name of the stage ``name`` for a round of RL; for the last or only round (None) it is ``name``."""
    return name if number is None else f"{name}-round-{number}"


def split_round(name: str) -> tuple[str, int | None]:
    """Return the stage and the number of the round from a name made by ``in_round``."""
    found = re.fullmatch(r"(.+)-round-(\d+)", name)
    return (found[1], int(found[2])) if found else (name, None)


def arms_of(stages: Iterable[str]) -> list[str]:
    """Return the arms that were evaluated, given the names of the finished stages: baselines, all rounds of RL except
    the last, and the result."""
    over = set(stages)
    named = map(split_round, over)
    rounds = [in_round(AFTER, n) for n in sorted(n for stage, n in named if stage == AFTER and n is not None)]
    return [name for name in (OTHER, BEFORE, REJECTION, *rounds, ALONE, AFTER) if stage_of(name) in over]


def title_of(arm: str, named: dict[str, str]) -> str:
    """Return the name of any arm for tables; ``named``: result of ``titles``."""
    number = split_round(arm)[1]
    return named[arm] if number is None else f"round {number}"


def titles(verified: bool, solved: bool = False, goes_on: bool = False) -> dict[str, str]:
    """Return the name of each policy for tables. ``verified``: RL starts from SFT on the verified demonstrations.
    ``solved``: the result is SFT on what RL solved. ``goes_on``: RL starts from the result of an earlier run."""
    start, other = ("SFT, verified", "SFT, all") if verified else ("SFT, all", "SFT, verified")
    if goes_on:
        start = "earlier run"
    result = "RL, then SFT" if solved else "RL"
    return {OTHER: other, BEFORE: start, REJECTION: "SFT, rejection", ALONE: "RL", AFTER: result}


def stage_of(name: str) -> str:
    """Return the stage that runs the evaluation ``name``. For three arms, the stage called ``name`` is the training."""
    return f"{name}-evaluation" if name in (OTHER, REJECTION, ALONE) else name


def best_baseline(pass1: dict[str, float], *, arms: Sequence[str] = (OTHER, BEFORE, REJECTION)) -> str:
    """Return the baseline with the best held-out pass@1 of those evaluated. Raises KeyError if none was."""
    known = [arm for arm in arms if arm in pass1]
    if not known:
        raise KeyError("no baseline was evaluated")
    return max(known, key=lambda arm: pass1[arm])
