"""Scripted demonstrations: imperfect on purpose, so that a policy learns to recover, and RL has something to improve.

A script is a generator that yields tool calls and is sent their results. It runs through the real harness and sandbox;
nothing is made up. ``DemonstrationSettings`` has the error rates. ``fix_of`` turns the reference solution of a task
into an edit that a tool call can make.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.policy.formats.verbs import RAW
from woodshed.recipe.stages import DemonstrationSettings
from woodshed.record.task import Task, TaskError
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.tasks.generators.synthetic.spec import NOUNS
from woodshed.tasks.languages.python import function_spans, mutations, pick

from .edits import edit_line_call


@dataclass(frozen=True)
class Fix:
    """One changed region of one file.

    ``before``: the whole file as the agent finds it. From line ``line`` (1-based) on, the text ``old`` is to be
    replaced by ``new``. ``old_unique``, ``new_unique``: the same change with enough lines around it that ``old_unique``
    occurs once in the file. ``function``: the enclosing function (``name`` or ``Class.name``), and ``function_line``:
    its first line; '' and 0 outside of functions.
    """

    path: str
    before: str
    line: int
    old: str
    new: str
    old_unique: str
    new_unique: str
    function: str
    function_line: int

    @property
    def old_line(self) -> str:
        return self.old.split("\n")[0]

    @property
    def new_line(self) -> str:
        return self.new.split("\n")[0]


def fix_of(task: Task) -> Fix:
    """Return the fix of a task. Raises TaskError unless its solution changes exactly one existing file."""
    fixes = fixes_of(task)
    if len(fixes) != 1:
        raise TaskError(f"{task.path}: the solution changes {[fix.path for fix in fixes]}; expected one file")
    return fixes[0]


def fixes_of(task: Task) -> list[Fix]:
    """Return the fix of each file that the solution changes. Raises TaskError if it changes none, or adds one."""
    workspace, solution = task.workspace_files(), task.solution_files()
    changed = [p for p in sorted(solution) if solution[p] != workspace.get(p)]
    if not changed or not set(changed) <= set(workspace):
        raise TaskError(f"{task.path}: the solution changes {changed or 'nothing'}; expected existing files")
    return [_fix(path, workspace[path].decode(), solution[path].decode()) for path in changed]


def _fix(path: str, before: str, after: str) -> Fix:
    old, new = before.split("\n"), after.split("\n")
    blocks = [b for b in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if b[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    i1, i2, j1, j2 = first[1], last[2], first[3], last[4]
    if i1 == i2:  # a pure insertion needs an existing line as its anchor
        i1, j1 = max(0, i1 - 1), max(0, j1 - 1)
    low, high = 0, 0
    while before.count("\n".join(old[i1 - low : i2 + high])) != 1 and (i1 - low > 0 or i2 + high < len(old)):
        low, high = min(low + 1, i1), min(high + 1, len(old) - i2)
    return Fix(
        path,
        before,
        i1 + 1,
        "\n".join(old[i1:i2]),
        "\n".join(new[j1:j2]),
        "\n".join(old[i1 - low : i2 + high]),
        "\n".join(new[j1 - low : j2 + high]),
        *_function_at(before, i1 + 1),
    )


def _function_at(source: str, line: int) -> tuple[str, int]:
    try:
        spans = function_spans(source)
    except SyntaxError:
        return "", 0
    found = [s for s in spans if s.line <= line <= s.end_line]
    return (found[-1].name, found[-1].line) if found else ("", 0)


@dataclass(frozen=True)
class Action:
    """A tool call and its loss weight in SFT."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0


Script = Generator[Action, str, None]

FOREIGN_TOOL = "open"
"""A tool that no harness here has, for ``learn.demonstrations.foreign_tool``."""

_TEST, _FINISH, _UNDO = Action("run_tests"), Action("finish"), Action("undo")


def line_script(
    task: Task, rng: random.Random, settings: DemonstrationSettings, tools: Collection[str] = ("edit_line",)
) -> Script:
    """Script for synthetic tasks, with the tools ``read_file, undo, run_tests, finish`` and ``edit_line`` or
    ``edit_words``. Of several bugs, each is repaired when a test names its file."""
    fixes = fixes_of(task)
    tries = settings.max_edits * len(fixes)
    files = sorted(p for p in task.workspace_files() if p in set(task.info.submission))
    fix = _named(fixes, (yield _TEST), fixes[0])
    others = [f for f in files if f != fix.path]
    wrong = mutations(fix.before)
    if rng.random() < settings.invalid_call:
        yield _invalid(rng, files, fix, tools)
    if others and rng.random() < settings.wrong_file:
        yield Action("read_file", {"path": rng.choice(others)})
    yield from _view(fix.path, rng, settings)
    if settings.decline and rng.random() < settings.decline:  # at 0 no number is drawn, so demonstrations do not change
        yield _FINISH
        return
    for attempt in range(tries):
        if rng.random() < settings.invalid_call:
            yield _invalid(rng, files, fix, tools)
        if rng.random() < settings.right_edit or not wrong:
            line, old, text, weight = fix.line, fix.old_line, fix.new_line, 1.0
        else:
            mutation = pick(rng, wrong)
            line, old, text, weight = mutation.line, mutation.before, mutation.after, settings.wrong_edit_weight
            if rng.random() < settings.broken_edit:
                text, weight = broken_line(rng, text, fix.before), 0.0
            if (line, text) == (fix.line, fix.new_line):
                weight = 1.0  # the random edit happens to be the fix
        result = yield Action(*edit_line_call(tools, fix.path, line, old, text), weight)
        if result.startswith("error"):
            if rng.random() < settings.reread:
                yield from _view(fix.path, rng, settings)
            continue
        if rng.random() < settings.untested_finish:
            break
        result = yield _TEST
        if suite_passed(result) or rng.random() < settings.give_up:
            break
        if (other := _named(fixes, result, fix)) is not fix:
            fix, wrong = other, mutations(other.before)
            yield from _view(fix.path, rng, settings)
        elif attempt + 1 < tries and rng.random() < settings.undo:
            yield _UNDO
            if rng.random() < settings.reread:
                yield from _view(fix.path, rng, settings)
    yield _FINISH


def _named(fixes: Sequence[Fix], result: str, otherwise: Fix) -> Fix:
    """Return the fix of the file that the test names as failing; ``otherwise`` if it names none of theirs."""
    return next((fix for fix in fixes if f"FAIL {Path(fix.path).stem}" in result.split("\n")), otherwise)


def must_search(task: Task) -> bool:
    """Return whether the instruction does not name the file to change. Raises TaskError, see ``fix_of``."""
    return fix_of(task).path not in task.instruction


def package_script(
    task: Task, rng: random.Random, settings: DemonstrationSettings, view: int, *, by_line: bool = False
) -> Script:
    """Script for real packages, with the tools ``read_file, run_tests, finish``, ``edit_file`` or (``by_line``)
    ``edit_line``, and ``grep`` if the instruction does not name the file.

    The script uses nothing that the policy could not know: it reads the function from its first line, ``view`` lines at
    a time, until it has seen the lines that it replaces; it reads only once if the instruction quotes these lines.
    Raises TaskError for a fix that ``edit_line`` cannot make.
    """
    fix = fix_of(task)
    if by_line and "\n" in fix.old:
        raise TaskError(f"{task.path}: the solution replaces several lines; give the policy edit_file, not edit_line")
    if must_search(task):
        yield _TEST
        name = fix.function.rpartition(".")[2]
        yield Action("grep", {"pattern": f"def {name}" if name else fix.old_line.strip(), "path": "."})
    if rng.random() < settings.invalid_call:
        yield Action("read_file", {"path": fix.path + ".py"}, 0.0)
    first = fix.before[: fix.before.index(fix.old_unique)].count("\n") + 1
    start = min(first, fix.function_line or max(1, fix.line - view // 2))
    stop = first + fix.old_unique.count("\n") + 1
    reads = [Action("read_file", {"path": fix.path, "offset": n}) for n in range(start, stop, view)]
    told = bool(fix.old.strip()) and fix.old in task.instruction
    if told:
        del reads[1:]
    for read in reads:
        _ = yield read
    seen = range(start, start + view * len(reads))
    others = mutations(fix.before, function=fix.function, keep_format=True) if fix.function else []
    known = [m for m in others if (m.line == fix.line if told else m.line in seen)]
    wrong = [m for m in known if by_line or fix.before.count(m.before) == 1]

    def edit(line: int, old: str, new: str, weight: float) -> Action:
        if by_line:
            return Action("edit_line", {"path": fix.path, "line": line, "text": new}, weight)
        return Action("edit_file", {"path": fix.path, "old_string": old, "new_string": new}, weight)

    for attempt in range(settings.max_edits):
        if rng.random() < settings.right_edit or not wrong:
            line, weight = fix.line, 1.0
            old, new = (fix.old, fix.new) if by_line else (fix.old_unique, fix.new_unique)
        else:
            mutation = pick(rng, wrong)
            line, old, new, weight = mutation.line, mutation.before, mutation.after, settings.wrong_edit_weight
        result = yield edit(line, old, new, weight)
        if result.startswith("error"):
            continue
        if rng.random() < settings.untested_finish:
            break
        result = yield _TEST
        if suite_passed(result) or rng.random() < settings.give_up:
            break
        again = line == fix.line  # the next attempt is at the same line; an edit by line simply overwrites it
        if attempt + 1 < settings.max_edits and not (again and by_line) and (again or rng.random() < settings.undo):
            yield edit(line, new, old, 1.0)
            if rng.random() < settings.reread:
                yield reads[-1]
    yield _FINISH


def broken_line(rng: random.Random, text: str, source: str) -> str:
    """Return the start of ``text`` joined with the end of a random line of ``source``."""
    other = rng.choice([line for line in source.split("\n") if line.strip()])
    return text[: rng.randint(4, max(4, len(text) - 1))] + other[rng.randint(0, max(0, len(other) - 3)) :]


def _view(path: str, rng: random.Random, settings: DemonstrationSettings) -> Script:
    """Read a file, now and then first with a tool that does not exist."""
    if settings.foreign_tool and rng.random() < settings.foreign_tool:
        yield Action(FOREIGN_TOOL, {RAW: f" {path}"})  # so the compact format parses a call of an unknown tool
    yield Action("read_file", {"path": path})


def _invalid(rng: random.Random, files: list[str], fix: Fix, tools: Collection[str]) -> Action:
    """Return a call that the harness answers with an error."""
    choice = rng.randrange(4)
    if choice == 0:
        return _UNDO
    if choice == 3:
        missing = rng.choice([noun for noun in NOUNS if f"{noun}.py" not in files])
        return Action("read_file", {"path": f"{missing}.py"}, 0.0)
    if choice == 1:  # no such line
        return Action(*edit_line_call(tools, fix.path, 40 + rng.randrange(9), fix.old_line, fix.new_line), 0.0)
    name, arguments = edit_line_call(tools, fix.path, fix.line, fix.old_line, fix.new_line)
    same = {"new": arguments["old"]} if name == "edit_words" else {"text": fix.old_line}
    return Action(name, {**arguments, **same}, 0.0)
