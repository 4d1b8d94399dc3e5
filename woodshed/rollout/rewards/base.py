"""What a reward term is, and how a recipe's terms become the reward of an episode.

A term is a function ``(task, trajectory, outcome, **options) -> float`` in a file of its own, anywhere. Put its name
into ``rl.rewards``, or ``"my_module:my_function"`` for one of your own. It sees everything that the episode left: the
conversation, every tool call, token counts, the verdict of each test. It must be a pure function of them: a group is
compared by the sums, and a stored trajectory can be scored again.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from woodshed.record.extension import is_reference, load_reference
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

from .settings import TermSettings

_PLACES = {
    "outcome": "base:resolved",
    "effort": "effort:effort",
    "invalid_call": "tool_use:invalid_call",
    "unread_edit": "tool_use:unread_edit",
    "repeated_failure": "tool_use:repeated_failure",
    "unfinished_todos": "tool_use:unfinished_todos",
    "untested_finish": "communication:untested_finish",
    "unfounded_claim": "communication:unfounded_claim",
    "silent_finish": "communication:silent_finish",
}


class RewardTerm(Protocol):
    """Keyword arguments beyond the three are options of the recipe and need defaults."""

    def __call__(self, task: Task, trajectory: Trajectory, outcome: Outcome, /) -> float: ...


RewardFunction = Callable[[Task, Trajectory, Outcome], dict[str, float]]
"""Named, weighted terms; the reward is their sum."""


class RewardError(Exception):
    """A reward term of the user's own raised, or gave no finite number; the message names it."""


def resolved(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """1 where grading found the task resolved, else 0."""
    return 1.0 if outcome.resolved else 0.0


def raw_outcome(task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
    """The reward of evaluation: resolved or not, nothing shaped."""
    return {"outcome": resolved(task, trajectory, outcome)}


def names() -> tuple[str, ...]:
    """The terms that come with Woodshed."""
    return tuple(_PLACES)


def load_term(name: str, options: Mapping[str, Any] | None = None) -> RewardTerm:
    """The term of a name, or of a reference ``"module:function"``, with its options. Raises ValueError."""
    where = f"rl.rewards.{name}"
    if name not in _PLACES and not is_reference(name):
        near = difflib.get_close_matches(name, _PLACES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_PLACES)}, or 'module:function'"
        raise ValueError(f"{where}: unknown reward term; {hint}")
    term = load_reference(f"{__package__}.{_PLACES[name]}" if name in _PLACES else name, where)
    if not callable(term):
        raise ValueError(f"{where}: it is no function of (task, trajectory, outcome)")
    parameters = inspect.signature(term).parameters
    keywords = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    for option in options or {}:
        if option not in keywords and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            said = f"known: {', '.join(keywords)}" if keywords else "it takes none"
            raise ValueError(f"{where}: no option {option!r}; {said}")
    try:
        inspect.signature(term).bind(None, None, None, **(options or {}))
    except TypeError as error:
        raise ValueError(f"{where}: it cannot be called with (task, trajectory, outcome): {error}") from None
    return partial(term, **options) if options else term


def reward_function(settings: Mapping[str, TermSettings]) -> RewardFunction:
    """The training reward of a recipe. Raises ValueError where a term cannot be had.

    The function it gives raises RewardError.
    """
    terms = {name: load_term(name, s.options) for name, s in settings.items() if s.weight or name == "outcome"}

    def reward(task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, term in terms.items():
            try:
                value = float(term(task, trajectory, outcome))
            except Exception as error:  # whatever a user's function raises
                raise RewardError(f"rl.rewards.{name}: {type(error).__name__}: {error}") from error
            if not math.isfinite(value):
                raise RewardError(f"rl.rewards.{name}: its value is {value}; a reward must be a finite number")
            weighted, cap = settings[name].weight * value, settings[name].cap
            found[name] = weighted if cap is None else max(-cap, min(cap, weighted))
        return found

    return reward
