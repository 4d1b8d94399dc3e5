"""Turn the reward terms that a recipe names (``rl.rewards``) into the reward of an episode.

A term is a function ``(task, trajectory, outcome, **options) -> float`` in a file of its own, anywhere. Put its name
into ``rl.rewards``, or ``"my_module:my_function"`` for one of your own. A term gets the whole record of the episode:
the conversation, every tool call, token counts, the verdict of each test. It must be a pure function of them, because
the trajectories of a group are compared by the sums of their terms, and a stored trajectory can be scored again.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from woodshed.record.fault import Fault, is_shortage
from woodshed.record.settings import Settings, is_reference, load_reference
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Outcome, Trajectory

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
    "style": "style:style",
    "commented_out": "commented_out:commented_out",
    "tool_collapse": "tool_collapse:tool_collapse",
}


class TermSettings(Settings):
    """One reward term; a bare number is its ``weight``."""

    weight: float
    """Factor of the term's value; 0 turns the term off. Penalties have values below 0: give them a positive weight."""
    cap: float | None = Field(default=None, gt=0)
    """Maximum absolute value of the weighted term in the reward of one episode; no maximum by default."""
    options: dict[str, bool | int | float | str] = {}
    """Keyword arguments of the term's function, such as ``{ k = 2.0, q = 0.3 }`` of ``effort``."""


def _written_out(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    terms = {"outcome": 1.0, **value}
    return {
        k: {"weight": v} if isinstance(v, (int, float)) and not isinstance(v, bool) else v for k, v in terms.items()
    }


RewardTerms = Annotated[dict[str, TermSettings], BeforeValidator(_written_out)]
"""Settings by the name, or ``"my_module:my_function"``, of each term. By default ``outcome`` has weight 1."""


class RewardTerm(Protocol):
    """A reward term. Keyword arguments beyond these three are options of the recipe and need defaults."""

    def __call__(self, task: Task, trajectory: Trajectory, outcome: Outcome, /) -> float: ...


RewardFunction = Callable[[Task, Trajectory, Outcome], dict[str, float]]
"""Named, weighted terms; the reward is their sum."""


class RewardError(Exception):
    """A reward term raised an exception or returned no finite number; the message names the term."""


def resolved(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return 1 if grading found the task resolved, else 0."""
    return 1.0 if outcome.resolved else 0.0


def raw_outcome(task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
    """Return the reward of evaluation: resolved or not, without shaping."""
    return {"outcome": resolved(task, trajectory, outcome)}


def names() -> tuple[str, ...]:
    """Return the names of the built-in terms."""
    return tuple(_PLACES)


def load_term(name: str, options: Mapping[str, Any] | None = None) -> RewardTerm:
    """Load a term by its name or by a reference ``"module:function"``, with its options. Raises ValueError."""
    where = f"rl.rewards.{name}"
    if name not in _PLACES and not is_reference(name):
        near = difflib.get_close_matches(name, _PLACES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_PLACES)}, or 'module:function'"
        raise ValueError(f"{where}: unknown reward term; {hint}")
    term = load_reference(f"{__package__}.{_PLACES[name]}" if name in _PLACES else name, where)
    if not callable(term):
        raise ValueError(f"{where}: it is no function of (task, trajectory, outcome)")
    try:
        parameters = inspect.signature(term).parameters
    except ValueError as error:  # a function written in C, say
        raise ValueError(f"{where}: {error}") from None
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


def check_builtin(name: str, settings: TermSettings) -> None:
    """Try a built-in term on an episode without calls. Raises ValueError for invalid weights and options.

    The built-in terms, except ``outcome``, are penalties, so a weight below 0 would reward what it should penalise.
    """
    where = f"rl.rewards.{name}"
    if settings.weight < 0:
        raise ValueError(f"{where}: weight must be at least 0 (got {settings.weight}); the term's value is a penalty")
    empty = Trajectory("", "", "", "train", "", "", "submitted")
    try:
        value = load_term(name, settings.options)(Task(Path(), "", "", TaskInfo(), {}), empty, Outcome(resolved=False))
    except TypeError as error:
        raise ValueError(f"{where}: options have a wrong type: {error}") from None
    if not value <= 0:
        raise ValueError(f"{where}: with options {settings.options} an episode without calls would be paid {value:g}")


def reward_function(settings: Mapping[str, TermSettings]) -> RewardFunction:
    """Build the training reward of a recipe. Raises ValueError if a term cannot be loaded.

    The returned function raises RewardError, Fault, and OSError if the machine is out of a resource: neither says
    anything about the term or the submission, and a rollout tries again.
    """
    terms = {name: load_term(name, s.options) for name, s in settings.items() if s.weight or name == "outcome"}

    def reward(task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, term in terms.items():
            try:
                value = float(term(task, trajectory, outcome))
            except Exception as error:  # whatever a user's function raises
                if isinstance(error, Fault) or (isinstance(error, OSError) and is_shortage(error)):
                    raise
                raise RewardError(f"rl.rewards.{name}: {type(error).__name__}: {error}") from error
            if not math.isfinite(value):
                raise RewardError(f"rl.rewards.{name}: its value is {value}; a reward must be a finite number")
            weighted, cap = settings[name].weight * value, settings[name].cap
            found[name] = weighted if cap is None else max(-cap, min(cap, weighted))
        return found

    return reward
