"""What the reference solution of a task changes, as an edit that a tool call can make."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from woodshed.record.task import Task, TaskError
from woodshed.tasks.languages.python import function_spans


@dataclass(frozen=True)
class Fix:
    """One changed region of one file.

    ``before`` is the whole file as the agent finds it; lines ``line`` (1-based) onwards read ``old`` and shall read
    ``new``. ``old_unique``/``new_unique`` are the same change with as many lines around it as make ``old_unique`` occur
    once. ``function`` is the function around it (``name`` or ``Class.name``) and ``function_line`` where it begins;
    empty and 0 outside of functions.
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
    """The fix of a task whose solution changes one region of one file. TaskError otherwise."""
    workspace, solution = task.workspace_files(), task.solution_files()
    changed = [p for p in sorted(solution) if solution[p] != workspace.get(p)]
    if len(changed) != 1 or changed[0] not in workspace:
        raise TaskError(f"{task.path}: the solution changes {changed or 'nothing'}; expected one existing file")
    path = changed[0]
    before = workspace[path].decode()
    old, new = before.split("\n"), solution[path].decode().split("\n")
    blocks = [b for b in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if b[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    i1, i2, j1, j2 = first[1], last[2], first[3], last[4]
    if i1 == i2:  # a pure insertion needs a line to hold on to
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
