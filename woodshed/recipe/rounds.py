"""Rounds of RL (``rl.rounds``). At the end of each the policy is made anew from all that RL has solved so far
(``learn.solved.after_rl``), and the next round starts from that policy, on tasks that no round has used. Steps are
counted through all rounds, so one ledger, one store and one log of metrics hold them; each round has a weight chain and
checkpoints of its own, since its weights do not follow from those of the last step before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from woodshed.evaluate.arms import in_round

from .recipe import Recipe


@dataclass(frozen=True)
class Round:
    """One of ``rounds``; ``number`` counts from 1. Its steps are those after ``start``, up to and with ``end``."""

    number: int
    rounds: int
    start: int
    end: int

    @property
    def last(self) -> bool:
        return self.number == self.rounds

    @property
    def begins_with(self) -> str:
        """Name of the policy that RL starts from."""
        return "sft" if self.number == 1 else f"round-{self.number - 1}"

    @property
    def ends_with(self) -> str:
        """Name of the policy that is made from what was solved."""
        return "final" if self.last else f"round-{self.number}"

    @property
    def title(self) -> str:
        """The round for titles of stages, as ', round 2 of 3'; '' where there is one."""
        return f", round {self.number} of {self.rounds}" if self.rounds > 1 else ""

    def own(self, name: str) -> str:
        """``name`` of a stage, a program or a policy for this round (``evaluate.arms.in_round``)."""
        return in_round(name, None if self.last else self.number)

    def beside(self, place: str) -> str:
        """A folder or address that each round has its own of; the first has ``place``."""
        return place if self.number == 1 else f"{place}-round-{self.number}"


def rounds_of(recipe: Recipe) -> list[Round]:
    steps, count = recipe.rl.steps, recipe.rl.rounds
    return [Round(n, count, steps * (n - 1) // count, steps * n // count) for n in range(1, count + 1)]


def round_of(recipe: Recipe, number: int | None) -> Round:
    """The round of that number, the last one for None."""
    return rounds_of(recipe)[-1 if number is None else number - 1]
