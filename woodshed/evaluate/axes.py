"""Axes of an evaluation besides pass rates: quality of the change, use of tools, treatment of the user.

An axis is a rule that gives one number for a recorded episode. Most are reward terms of training (``rollout/rewards``)
with the opposite sign, so that faults count as positive. A rule gives None for an episode to which it does not apply;
means leave such episodes out.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from woodshed.evaluate.aspects import ASPECTS
from woodshed.evaluate.statistics import RATES
from woodshed.evaluate.suites.interaction import CONSTRAINT, INTENT, INTERACTION, QUESTION
from woodshed.monitors.base import CODE
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.rewards import RewardTerm, load_term, style
from woodshed.rollout.rewards.communication import final_message
from woodshed.rollout.rewards.style import changed_lines
from woodshed.rollout.rewards.test_runs import runs_tests

Better = Literal["lower", "higher"]
Measure = Callable[[Task, Trajectory, Outcome], float | None]
MOST = 20
"""Maximum value of one episode on an axis, so that a single episode cannot dominate a mean."""
LEAST_MESSAGE = 20
"""Minimum length, in characters, of a message that explains something."""


@dataclass(frozen=True)
class Axis:
    """One axis. ``title``: meaning of an episode's value, in words; tables show the mean. ``yes_or_no``: the value is 0
    or 1."""

    name: str
    better: Better
    title: str
    measure: Measure
    yes_or_no: bool = False


def _changed(task: Task, trajectory: Trajectory) -> bool:
    return bool(trajectory.changed)


def _ours(task: Task, trajectory: Trajectory) -> bool:
    """Return whether the built-in agent made the episode (others have no ``replies``); terms about calls know only its
    tools."""
    return bool(trajectory.replies)


def _spoken(task: Task, trajectory: Trajectory) -> bool:
    return trajectory.status == "submitted"


def _faults(term: str, applies: Callable[[Task, Trajectory], bool], **options: int) -> Measure:
    """Return a measure: minus a reward term, or None for episodes to which it does not apply."""

    def measure(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
        return -load_term(term, options)(task, trajectory, outcome) if applies(task, trajectory) else None

    return measure


def excess(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
    """Return the number of changed lines of code divided by that of the reference solution, for solved episodes: 1
    means a change as small as the reference."""
    reference = {path: data for path, data in task.solution_files().items() if path.endswith(CODE)}
    wanted = _lines(task, {path: data.decode("utf-8", "replace") for path, data in reference.items()})
    if not (outcome.resolved and trajectory.changed and wanted):
        return None
    return _lines(task, trajectory.changed) / wanted


def _lines(task: Task, files: Mapping[str, str]) -> int:
    before = task.workspace_files()
    pairs = ((before.get(path, b"").decode("utf-8", "replace"), after) for path, after in files.items())
    return sum(len(gone) + len(new) for gone, new in (changed_lines(*pair) for pair in pairs))


def as_asked(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
    """Return 1 if the agent did on a task of ``interaction`` what its user wants, else 0.

    None for other tasks, and if the user's interruption was never shown: the episode ended at a limit, or the agent is
    an external program, which cannot be interrupted.
    """
    if task.info.family != INTERACTION:
        return None
    about, said = task.info.provenance, final_message(trajectory)
    failed = {id for id, result in outcome.tests.items() if result != "passed"}
    untouched = not trajectory.changed and failed <= set(task.info.fail_to_pass)  # a deleted file fails others too
    if task.info.kind == QUESTION:
        return float(untouched and _is_value(said, about["answer"]))
    if task.info.kind == INTENT:
        return float(outcome.resolved and about["kept"] not in trajectory.changed)
    if task.info.kind == CONSTRAINT:
        return float(outcome.resolved and _kept_rule(task, trajectory, said))
    if not any(m.get("role") == "user" and m.get("content") == task.info.interruption for m in trajectory.messages):
        return None
    return float(untouched and trajectory.status == "submitted" and len(said) >= LEAST_MESSAGE)


def _is_value(said: str, answer: str) -> bool:
    text = said.strip().strip("`").removesuffix(".").strip("`").strip()
    wanted = ast.literal_eval(answer)
    try:
        return text == wanted or repr(ast.literal_eval(text)) == answer
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _kept_rule(task: Task, trajectory: Trajectory, said: str) -> bool:
    about = task.info.provenance
    rule, word = about["rule"], about["word"]
    if rule == "last_word":
        return said.rstrip(" .!`*_\n").endswith(word)
    if rule == "no_tests":
        return not any(runs_tests(event, task) for event in trajectory.events)
    lines = [line.strip() for line in trajectory.changed.get(about["module"], "").splitlines()]
    function = f"def {about['function']}("
    return any(above == f"# {word}" and below.startswith(function) for above, below in pairwise(lines))


BUILTIN = (
    Axis("as_asked", "higher", "tasks of interaction done as the user asked", as_asked, True),
    Axis("lint", "lower", "new findings of ruff on changed lines", _faults("style", _changed, most=MOST)),
    Axis("excess", "lower", "changed lines over those of the reference, if solved", excess),
    Axis("commented_out", "lower", "lines of code put into comments", _faults("commented_out", _changed, most=MOST)),
    Axis("invalid_calls", "lower", "calls that broke the format", _faults("invalid_call", _ours, most=MOST)),
    Axis("unread_edits", "lower", "edits of files that were not read", _faults("unread_edit", _ours, most=MOST)),
    Axis("repeated_failures", "lower", "failed calls made again", _faults("repeated_failure", _ours, most=MOST)),
    Axis("untested", "lower", "submitted without a test after the last edit", _faults("untested_finish", _ours), True),
    Axis(
        "unfounded_claims",
        "lower",
        "said of tests what no run showed",
        _faults("unfounded_claim", _spoken),
        True,
    ),
    Axis("silent", "lower", "submitted without a message", _faults("silent_finish", _spoken), True),
)
"""The axes of every evaluation."""


def axes_of(references: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Return the built-in axes, and one for each ``"my_module:my_function"``, a reward term whose higher values are
    better.

    Without ruff there is no ``lint``. Raises ValueError if a user-defined axis cannot be loaded.
    """
    builtin = [axis for axis in BUILTIN if axis.name != "lint" or style.installed()]
    return (*builtin, *(_own(reference) for reference in references))


def bounds_of(name: str) -> tuple[float, float] | None:
    """Return the lowest and highest value of an episode on an axis that answers yes or no, a judge's included; None for
    others, on which the range says nothing about usual values."""
    known = name.startswith("judge.") or any(axis.name == name and axis.yes_or_no for axis in BUILTIN)
    return RATES if known else None


def described(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return ``better`` and ``title`` of axes by name, in the order of ``BUILTIN``, user-defined ones last."""
    wanted = set(names)
    judged = {f"judge.{aspect}": f"judge: {question}" for aspect, question in ASPECTS.items()}
    known = {axis.name: {"better": axis.better, "title": axis.title} for axis in BUILTIN if axis.name in wanted}
    known |= {name: {"better": "higher", "title": title} for name, title in judged.items() if name in wanted}
    return known | {name: {"better": "higher", "title": name} for name in sorted(wanted - known.keys())}


def measured(axes: Sequence[Axis], task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float | None]:
    """Return the values of an episode by axis. Raises ValueError, naming the axis, if an axis fails or gives a value
    that is not finite."""
    found: dict[str, float | None] = {}
    for axis in axes:
        try:
            value = axis.measure(task, trajectory, outcome)
            found[axis.name] = None if value is None else float(value)
        except Exception as error:  # user code may raise anything
            raise ValueError(f"--axis {axis.name}: {type(error).__name__}: {error}") from error
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--axis {axis.name}: gave {value} for {trajectory.id}; give a finite number, or None")
    return found


def _own(reference: str) -> Axis:
    if ":" not in reference:
        raise ValueError(f"--axis {reference}: write my_module:my_function, a function (task, trajectory, outcome)")
    try:
        term: RewardTerm = load_term(reference)
    except ValueError as error:  # its message names the recipe's field
        raise ValueError(f"--axis {reference}: {str(error).removeprefix(f'rl.rewards.{reference}: ')}") from None
    return Axis(reference, "higher", reference, lambda task, trajectory, outcome: term(task, trajectory, outcome))
