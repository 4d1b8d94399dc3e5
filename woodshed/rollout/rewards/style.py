"""Reward term for code style: what ruff finds on the lines that the submission changed.

Ruff runs on the host without the project's configuration and without ``noqa`` comments: the policy can write both. It
only parses; no code of the submission is executed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from woodshed.record.fault import HostFault
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory

SELECTED = "E4,E7,E9,F,W,B,C4,PIE,SIM"
"""Default rules: ruff's own, bugbear, comprehensions and simplifications. Line length and the order of imports are left
to the project's configuration, which is not read."""
_PACKAGES = ("--per-file-ignores=__init__.py:F401",)
"""An ``__init__.py`` may import names that it does not use itself."""
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Line ends of Python and ruff; ``splitlines`` also splits at form feeds, so a policy could shift line numbers."""
_SECONDS, _TRIES = 30.0, 2
"""Time limit of ruff. A busy machine, or its memory killer, may stop ruff once; what stops it twice is the code."""
_MISSING = 'rl.rewards.style: ruff is not installed; install woodshed[style], or leave "style" out'
_BROKEN = "invalid-syntax"


def style(task: Task, trajectory: Trajectory, outcome: Outcome, *, select: str = SELECTED, most: int = 5) -> float:
    """Return -1 for each new finding on a changed line of Python, at most ``most``.

    A finding is new if the replaced lines had fewer findings of its rule. A file that parsed before and does not now,
    or that ruff cannot read, counts as ``most`` findings, because broken code hides others. ``select``: rules as in
    ruff's ``--select``. Raises ValueError if ruff is not installed or does not know the rules, and HostFault if this
    machine stops ruff even without a submission.
    """
    _check_rules(select)
    files = [(path, text) for path, text in trajectory.changed.items() if path.endswith((".py", ".pyi"))]
    if not files:
        return 0.0
    before = task.workspace_files()
    pairs = [(path, before.get(path, b"").decode("utf-8", "replace"), after) for path, after in files]
    found = _findings(pairs, select)
    if found is None:
        return -float(most)
    total = 0
    for (_, old, new), (old_found, new_found) in zip(pairs, found, strict=True):
        removed, added = changed_lines(old, new)
        if any(rule == _BROKEN for rule, _ in new_found) and not any(rule == _BROKEN for rule, _ in old_found):
            return -float(most)
        fresh = Counter(rule for rule, line in new_found if line in added)
        fresh -= Counter(rule for rule, line in old_found if line in removed)
        total += fresh.total()
    return -float(min(total, most))


def installed() -> bool:
    """Return whether ruff is installed."""
    try:
        return bool(_program())
    except ValueError:
        return False


def changed_lines(before: str, after: str) -> tuple[set[int], set[int]]:
    """Return the numbers (from 1) of lines of ``before`` that are gone, and of lines of ``after`` that are new.

    A line that only moved is neither. Linear in the size of the files, which a policy writes.
    """
    old, new = _LINE_END.split(before), _LINE_END.split(after)
    return set(_surplus(old, Counter(new))), set(_surplus(new, Counter(old)))


def _surplus(lines: list[str], known: Counter[str]) -> Iterator[int]:
    """Yield the numbers of lines that occur more often than ``known`` says."""
    for number, line in enumerate(lines, 1):
        if known[line] > 0:
            known[line] -= 1
        else:
            yield number


Found = tuple[list[tuple[str, int]], list[tuple[str, int]]]
"""(rule, line) of each finding before and after."""


def _findings(pairs: list[tuple[str, str, str]], select: str) -> list[Found] | None:
    """Return the findings in each (path, before, after); None if ruff has no result, as on code made to crash it."""
    with tempfile.TemporaryDirectory(prefix="woodshed-style-") as folder:
        for i, (path, *texts) in enumerate(pairs):
            # Only these names matter to the rules about imports; a submitted name may not be valid here.
            name = "__init__.py" if PurePosixPath(path).name == "__init__.py" else f"module{PurePosixPath(path).suffix}"
            for side, text in zip(("before", "after"), texts):
                place = Path(folder, str(i), side)
                place.mkdir(parents=True)
                (place / name).write_text(text, "utf-8", "replace")
        done = _ruff("--output-format=json", f"--select={select}", "--exit-zero", folder)
        if done is None:
            return None
        try:
            listed = json.loads(done.stdout)
        except ValueError:
            return None
        found: list[Found] = [([], []) for _ in pairs]
        for item in listed:
            number, side, _ = Path(item["filename"]).parts[-3:]
            rule = item["code"] or _BROKEN
            found[int(number)][side == "after"].append((rule, item["location"]["row"]))
    return found


def _ruff(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run ruff, without text on its standard input; None if a signal or the time limit stopped it every time."""
    command = [
        _program(),
        "check",
        "--isolated",
        "--no-cache",
        "--ignore-noqa",
        "--target-version=py313",
        *_PACKAGES,
        *arguments,
    ]
    for _ in range(_TRIES):
        try:
            done = subprocess.run(command, input="", capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode >= 0:
            return done
    return None


def _program() -> str:
    try:
        from ruff import find_ruff_bin

        return str(find_ruff_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("ruff")
    if found is None:
        raise ValueError(_MISSING)
    return found


@cache
def _check_rules(select: str) -> None:
    done = _ruff(f"--select={select}", "-")
    if done is None:
        raise HostFault(f"rl.rewards.style: this machine stopped ruff {_TRIES} times, on empty input")
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "invalid value" in line), done.stderr)
        raise ValueError(f"rl.rewards.style: ruff does not accept the rules {select!r}: {problem.strip()[:200]}")
