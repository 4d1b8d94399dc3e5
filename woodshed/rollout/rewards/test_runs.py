"""Test runs in an episode: which calls run tests, and how each run ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from woodshed.record.task import Task
from woodshed.record.trajectory import ToolEvent

from .shell_lines import tokens

_RUNNERS = frozenset({"pytest", "py.test", "unittest", "nose2", "tox", "nox", "mocha", "jest", "tape", "vitest", "ava"})
_WRAPPERS = frozenset({"time", "env", "exec", "nice", "npx", "python -m", "uv run", "poetry run", "xvfb-run"})
_RUNS_NOTHING = frozenset({"--version", "-V", "--help", "-h", "--collect-only", "--co", "--fixtures", "--markers"})
_STOPPED = frozenset({"timeout", "out_of_memory"})
"""Errors of a call whose program ran and was stopped."""

# Lines of the summaries of pytest, mocha, jest and vitest, node:test and tape, ava, unittest, in this order.
_PASSED = re.compile(
    r"\APASS|^=* ?\d+ passed\b|^ *\d+ passing\b|^ *Tests:? +(\d+ \w+(, | \| ))*[1-9]\d* passed\b|^[#ℹ] pass +[1-9]"
    r"|^ *[1-9]\d* tests? passed$|^Ran [1-9]\d* tests? in .*\n\nOK( \(.*\))?$",
    re.MULTILINE,
)
_FAILED = re.compile(
    r"^FAIL \S|^=* ?(\d+ \w+, )*[1-9]\d* (failed|errors?)\b|^ *[1-9]\d* failing\b|^ *Tests:? +[1-9]\d* failed\b"
    r"|^[#ℹ] (fail|cancelled) +[1-9]|^ *[1-9]\d* tests? failed$|^FAILED \(",
    re.MULTILINE,
)
"""The first: how our runner (jest, too) reports a failure, before which the code under test may have printed anything,
"PASS" included."""
_NOTHING = re.compile(r"\bno tests ran\b|^Ran 0 tests |^ *0 passing\b|^[#ℹ] tests 0$", re.MULTILINE)
_ENDED = re.compile(r"^(\[(exit code|signal) \d+\]$|error: (timeout|out of memory))", re.MULTILINE)
"""How ``run_tests`` and ``run_command`` report a program that failed, was killed or ran too long."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def suite_passed(result: str) -> bool:
    """Return whether a ``run_tests`` result says that all tests passed, in the words of our runner, pytest, unittest,
    mocha, jest, vitest, ava, tape or node:test."""
    return _summary(result) is True and not _ENDED.search(result)


def suite_failed(result: str) -> bool:
    """Return whether a ``run_tests`` result says that a test failed or none ran, in the words of a known runner."""
    return _summary(result) is False or bool(_ENDED.search(result))


def _summary(result: str) -> bool | None:
    """Return whether the summaries of known runners in ``result`` say that all tests passed; None without one."""
    text = _COLOR.sub("", result)
    if _FAILED.search(text):
        return False
    if _PASSED.search(text):
        return True
    return False if _NOTHING.search(text) else None


def starts_tests(event: ToolEvent, task: Task) -> bool:
    """Return whether the call is ``run_tests``, or gives the task's test command or a known runner to a shell, and
    ran, if only until it was stopped."""
    if event.error is not None and event.error not in _STOPPED:
        return False
    if event.name == "run_tests":
        return True
    if "no tests ran" in event.result:
        return False
    return any(step.tests for step in _steps(event, task))


def runs_tests(event: ToolEvent, task: Task) -> bool:
    """Return whether the call runs tests to their end."""
    return event.error is None and starts_tests(event, task)


def run_passed(event: ToolEvent, task: Task) -> bool | None:
    """Return whether a test run (``starts_tests``) shows that its tests passed; None if its record does not tell.

    The record does not tell if it has no exit code, as those of external programs, and no summary of a known runner.
    The exit code of a shell line counts as that of its tests only if it must be.
    """
    summary = _summary(event.result)
    if event.error is not None or summary is False:
        return False
    failed = event.exit_code != 0 if event.exit_code is not None else bool(_ENDED.search(event.result))
    if event.name == "run_tests":
        steps = [_Step("", True)]
    else:
        steps = _steps(event, task)
    if failed and steps[-1].tests:
        return False
    if summary or (event.exit_code is None and not failed):
        return summary
    return not failed and _status_is_of_tests(steps)


@dataclass(frozen=True)
class _Step:
    """One command of a shell line: the operator before it, and whether it runs tests."""

    after: str
    tests: bool


def _steps(event: ToolEvent, task: Task) -> list[_Step]:
    """Return the commands of the event's shell line; empty for other calls."""
    command = (event.arguments or {}).get("command")
    if not isinstance(command, str):
        return []
    own = next((words for _, words in _simple_commands(task.info.test_command)), [])
    return [
        _Step(after, bool(words) and ((bool(own) and words[: len(own)] == own) or _is_runner(words)))
        for after, words in _simple_commands(command)
    ]


def _status_is_of_tests(steps: Sequence[_Step]) -> bool:
    """Return whether a line can succeed only if a test run in it does: nothing but ``&&`` follows that run."""
    for step, following in zip(reversed(steps), [None, *reversed(steps)], strict=False):
        if following is not None and following.after.strip("()") not in ("&&", ""):
            return False
        if step.tests:
            return "||" not in step.after
    return False


def _simple_commands(command: str) -> list[tuple[str, list[str]]]:
    """Return the operator before each command of a shell line, and its words without variable assignments; nothing if
    a quote is open. An operator at the end (``&``) is followed by no words."""
    found: list[tuple[str, list[str]]] = []
    words: list[str] = []
    after = ""
    try:
        for token in tokens(command):
            if set(token) <= set("();|&"):
                if words:
                    found.append((after, words))
                    words, after = [], token
                else:
                    after += token
            elif words or not re.match(r"\w+=", token):
                words.append(token)
    except ValueError:
        return []
    if words or after.strip("();"):
        found.append((after, words))
    return found


def _is_runner(words: list[str]) -> bool:
    if not _RUNS_NOTHING.isdisjoint(words):
        return False
    words = _unwrapped(words)
    if not words:
        return False
    if words[0] in ("npm", "yarn", "pnpm"):
        return "test" in (words[1:2] if words[1:2] != ["run"] else words[2:3])
    return words[0] in _RUNNERS or words[:2] == ["node", "--test"]


def _unwrapped(words: Sequence[str]) -> list[str]:
    """Return a command without variables, wrappers and the folder of its program; empty if only wrappers are left."""
    at = 0
    while at < len(words):
        name = re.sub(r"^.*/", "", words[at])
        name = re.sub(r"^python[\d.]*$", "python", name)
        left = len(words) - at
        if re.match(r"\w+=", words[at]):  # after ``env``
            at += 1
        elif name == "timeout":
            at += 2
        elif name in _WRAPPERS and left > 1:
            at += 1
        elif left > 2 and f"{name} {words[at + 1]}" in _WRAPPERS:
            at += 2
        else:
            return [name, *words[at + 1 :]]
    return []
