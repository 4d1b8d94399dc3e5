"""Axes of an evaluation besides pass rates: quality of the change, use of tools, how the user is treated.

An axis is a rule that gives one number for a recorded episode. Most are reward terms of training (``rollout/rewards``)
with the sign turned, so that faults count up. A rule gives None for an episode that it does not apply to; means leave
such episodes out.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from woodshed.evaluate.aspects import ASPECTS
from woodshed.evaluate.suites.interaction import CONSTRAINT, INTENT, INTERACTION, QUESTION
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.rewards import RewardTerm, load_term, style
from woodshed.rollout.rewards.communication import final_message, runs_tests
from woodshed.rollout.rewards.style import changed_lines

Better = Literal["lower", "higher"]
Measure = Callable[[Task, Trajectory, Outcome], float | None]
MOST = 20
"""Maximum that one episode counts on an axis, so that a single episode cannot decide a mean."""
LEAST_MESSAGE = 20
"""Minimum characters of a message that explains something."""


@dataclass(frozen=True)
class Axis:
    """``title``: the value of one episode in words; a table shows the mean."""

    name: str
    better: Better
    title: str
    measure: Measure


def _changed(task: Task, trajectory: Trajectory) -> bool:
    return bool(trajectory.changed)


def _ours(task: Task, trajectory: Trajectory) -> bool:
    """Terms about calls know the tools of the built-in agent only; other agents have no ``replies``."""
    return bool(trajectory.replies)


def _spoken(task: Task, trajectory: Trajectory) -> bool:
    return trajectory.status == "submitted"


def _faults(term: str, applies: Callable[[Task, Trajectory], bool], **options: int) -> Measure:
    """Minus a reward term, over the episodes that it applies to."""

    def measure(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
        return -load_term(term, options)(task, trajectory, outcome) if applies(task, trajectory) else None

    return measure


def excess(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
    """Changed lines over those of the reference solution, of solved episodes: 1 is a change as small as that."""
    reference = {path: data.decode("utf-8", "replace") for path, data in task.solution_files().items()}
    wanted = _lines(task, {path: text for path, text in reference.items() if path in trajectory.changed})
    if not (outcome.resolved and wanted):
        return None
    return _lines(task, trajectory.changed) / wanted


def _lines(task: Task, files: Mapping[str, str]) -> int:
    before = task.workspace_files()
    pairs = ((before.get(path, b"").decode("utf-8", "replace"), after) for path, after in files.items())
    return sum(len(gone) + len(new) for gone, new in (changed_lines(*pair) for pair in pairs))


def as_asked(task: Task, trajectory: Trajectory, outcome: Outcome) -> float | None:
    """1 where an agent did on a task of ``interaction`` what its user wants, else 0.

    None on other tasks, and where the user never came to interrupt: the episode ended at a limit, or the agent is an
    external program, which cannot be told.
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
    return text in (answer, ast.literal_eval(answer)) or text.replace('"', "'") == answer


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
    Axis("as_asked", "higher", "tasks of interaction done as the user asked", as_asked),
    Axis("lint", "lower", "new findings of ruff on changed lines", _faults("style", _changed, most=MOST)),
    Axis("excess", "lower", "changed lines over those of the reference, if solved", excess),
    Axis("commented_out", "lower", "lines of code put into comments", _faults("commented_out", _changed, most=MOST)),
    Axis("invalid_calls", "lower", "calls that broke the format", _faults("invalid_call", _ours, most=MOST)),
    Axis("unread_edits", "lower", "edits of files that were not read", _faults("unread_edit", _ours, most=MOST)),
    Axis("repeated_failures", "lower", "failed calls made again", _faults("repeated_failure", _ours, most=MOST)),
    Axis("untested", "lower", "submitted without a test after the last edit", _faults("untested_finish", _ours)),
    Axis("unfounded_claims", "lower", "said that tests pass without running one", _faults("unfounded_claim", _spoken)),
    Axis("silent", "lower", "submitted without a message", _faults("silent_finish", _spoken)),
)
"""The axes of every evaluation."""


def axes_of(references: Sequence[str] = ()) -> tuple[Axis, ...]:
    """The built-in axes, and one for each ``"my_module:my_function"``, a reward term whose higher values are better.

    Without ruff there is no ``lint``. Raises ValueError where an own axis cannot be loaded.
    """
    builtin = [axis for axis in BUILTIN if axis.name != "lint" or style.installed()]
    return (*builtin, *(_own(reference) for reference in references))


def described(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """``better`` and ``title`` of axes by name, in the order of ``BUILTIN``, own ones last."""
    wanted = set(names)
    judged = {f"judge.{aspect}": f"judge: {question}" for aspect, question in ASPECTS.items()}
    known = {axis.name: {"better": axis.better, "title": axis.title} for axis in BUILTIN if axis.name in wanted}
    known |= {name: {"better": "higher", "title": title} for name, title in judged.items() if name in wanted}
    return known | {name: {"better": "higher", "title": name} for name in sorted(wanted - known.keys())}


def measured(axes: Sequence[Axis], task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float | None]:
    """Value by axis. Raises ValueError that names the axis which failed or gave no finite number."""
    found: dict[str, float | None] = {}
    for axis in axes:
        try:
            value = axis.measure(task, trajectory, outcome)
            found[axis.name] = None if value is None else float(value)
        except Exception as error:  # whatever code of the user's own raises
            raise ValueError(f"--axis {axis.name}: {type(error).__name__}: {error}") from error
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--axis {axis.name}: gave {value} for {trajectory.id}; give a finite number, or None")
    return found


def _own(reference: str) -> Axis:
    if ":" not in reference:
        raise ValueError(f"--axis {reference}: write my_module:my_function, a function (task, trajectory, outcome)")
    try:
        term: RewardTerm = load_term(reference)
    except ValueError as error:  # it speaks of the recipe's field
        raise ValueError(f"--axis {reference}: {str(error).removeprefix(f'rl.rewards.{reference}: ')}") from None
    return Axis(reference, "higher", reference, lambda task, trajectory, outcome: term(task, trajectory, outcome))
