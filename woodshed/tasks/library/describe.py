"""``woodshed tasks show``: describe a task as readable text or JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from woodshed.record.history import History, read_history
from woodshed.record.task import Task
from woodshed.tasks.change import Change, change_of, generator_of

from .difficulty import lines_of

_SHOWN_TESTS = 12


@dataclass(frozen=True)
class Description:
    """A task, its change and its history; ``limit``: diff lines to print, None for all diff lines and tests."""

    task: Task
    change: Change
    history: History
    limit: int | None

    def text(self) -> str:
        """Sections with headings. May hold control characters of the task: print it through ``visible`` only."""
        info = self.task.info
        count = f"{len(self.change.files)} file{'s' * (len(self.change.files) != 1)}, {self.change.lines} changed lines"
        runner = "no tests of the task: they stay with the grader" if self.task.withheld else "the grader's own runner"
        broken = f"what is broken ({count}; from the workspace to the solution)"
        parts = [
            f"{self.task.name}\n{self.task.path}",
            _section("instruction", self.task.instruction.strip()),
            _section("what is broken" if self.task.withheld else broken, self._diff()),
            _section(f"fail to pass ({len(info.fail_to_pass)})", self._tests(info.fail_to_pass)),
            _section(f"pass to pass ({len(info.pass_to_pass)})", self._tests(info.pass_to_pass)),
            _section("what an agent runs", info.test_command or runner),
            _section("provenance", _rows(self.provenance())),
            _section("limits", _rows(self.limits())),
        ]
        if info.quality:
            parts.append(_section("quality", _rows(info.quality)))
        if known := lines_of(self.history):
            parts.append(_section("difficulty (shares with 95 % intervals)", "\n".join(known)))
        return "\n\n".join(parts)

    def provenance(self) -> dict[str, str]:
        info = self.task.info
        stated = {k: v for k, v in info.provenance.items() if v}
        licence = stated.pop("licence", "") or "not stated"
        stated.pop("generator", None)
        first = {"generator": generator_of(self.task), "kind": info.kind, "split": info.split, "key": info.key}
        return {"licence": licence, **{k: v for k, v in first.items() if v}, **stated}

    def limits(self) -> dict[str, str]:
        config = self.task.config
        environment = _table(config, "environment")
        hidden = sum(name.startswith("workspace/") for name in self.task.test_files())
        found = {
            "grader": self.task.info.grader,
            "one test run": f"{self.task.info.timeout_sec:g} s",
            "agent": f"{_table(config, 'agent').get('timeout_sec', 'not stated')} s",
            "network": str(environment.get("network_mode", "not stated")),
            "may be submitted": ", ".join(self.task.info.submission),
            "never counts": ", ".join(self.task.info.protected) or "nothing",
            "layers": ", ".join(self.task.info.layers) or "none",
            "files": f"{len(self.task.workspace_files())} in the workspace, {hidden} laid over it for grading",
        }
        return {k: v for k, v in found.items() if v}

    def as_json(self) -> dict[str, Any]:
        info = self.task.info
        return {
            "name": self.task.name,
            "path": str(self.task.path),
            "instruction": self.task.instruction,
            "files": list(self.change.files),
            "changed_lines": self.change.lines,
            "diff": self.change.diff,
            "fail_to_pass": list(info.fail_to_pass),
            "pass_to_pass": list(info.pass_to_pass),
            "test_command": info.test_command,
            "provenance": self.provenance(),
            "limits": self.limits(),
            "quality": self.task.info.quality,
            "status": self.history.status,
            "ratings": [asdict(r) for r in self.history.ratings],
            "mark": asdict(self.history.mark) if self.history.mark else None,
        }

    def _diff(self) -> str:
        if self.task.withheld:
            return "not known: the authors of the task withhold the solution"
        if not self.change.files:
            return "nothing: the workspace is the solution, or there is no solution/workspace"
        return _cut(self.change.diff.split("\n"), self.limit, "lines")

    def _tests(self, ids: tuple[str, ...]) -> str:
        return _cut(list(ids), None if self.limit is None else _SHOWN_TESTS, "tests") or "none"


def describe(task: Task, *, limit: int | None = 60) -> Description:
    """Describe a task; ``limit``: as in ``Description``. Raises TaskError if the task's history is damaged."""
    return Description(task, change_of(task), read_history(task), limit)


def _table(config: dict[str, Any], key: str) -> dict[str, Any]:
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _section(title: str, body: str) -> str:
    return f"{title}\n{textwrap.indent(body, '  ', lambda line: True)}"


def _rows(values: dict[str, str]) -> str:
    width = max(map(len, values), default=0)
    return "\n".join(f"{key:{width}}  {value}" for key, value in values.items())


def _cut(lines: list[str], limit: int | None, what: str) -> str:
    if limit is None or len(lines) <= limit:
        return "\n".join(lines)
    return "\n".join([*lines[:limit], f"... {len(lines) - limit} more {what}, --full shows them"])
