"""Rounds of RL (``rl.rounds``).

At the end of each round a policy is trained anew on all rollouts that RL has solved so far (``learn.solved.after_rl``),
and the next round starts from that policy, on tasks that no round has used. Steps are numbered across all rounds, so
they share one ledger, one store and one metrics log; each round has its own weight chain and checkpoints, since its
first weights do not continue from those of the last step before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from woodshed.evaluate.arms import in_round

from .recipe import Recipe


@dataclass(frozen=True)
class Round:
    """One of ``rounds`` rounds; ``number`` counts from 1. Its steps are ``start`` + 1 to ``end``, inclusive."""

    number: int
    rounds: int
    start: int
    end: int

    @property
    def last(self) -> bool:
        return self.number == self.rounds

    @property
    def begins_with(self) -> str:
        """Name of the policy that the round starts from."""
        return "sft" if self.number == 1 else f"round-{self.number - 1}"

    @property
    def ends_with(self) -> str:
        """Name of the policy at the end of the round, after SFT on what was solved."""
        return "final" if self.last else f"round-{self.number}"

    @property
    def title(self) -> str:
        """Suffix for titles of stages, such as ', round 2 of 3'; '' if there is only one round."""
        return f", round {self.number} of {self.rounds}" if self.rounds > 1 else ""

    def own(self, name: str) -> str:
        """Return the name for this round of the stage, program or policy ``name`` (``evaluate.arms.in_round``)."""
        return in_round(name, None if self.last else self.number)

    def beside(self, place: str) -> str:
        """Return this round's own folder or address, derived from ``place``, which is that of the first round."""
        return place if self.number == 1 else f"{place}-round-{self.number}"


def rounds_of(recipe: Recipe) -> list[Round]:
    steps, count = recipe.rl.steps, recipe.rl.rounds
    return [Round(n, count, steps * (n - 1) // count, steps * n // count) for n in range(1, count + 1)]


def round_of(recipe: Recipe, number: int | None) -> Round:
    """Return the round with this number; the last one for None."""
    return rounds_of(recipe)[-1 if number is None else number - 1]
