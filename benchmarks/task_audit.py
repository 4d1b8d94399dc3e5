"""Grade honest solutions and fakes on tasks that a build kept: honest ones must not be refused, fakes not accepted.

``task_factory.py`` runs this; every grading is a line of ``.audit.jsonl`` and is not repeated. Honest solutions: the
reference solution, and the same with additional code in the styles of tests/tasks/packages/test_screen.py. Fakes: the
stubs of the guessing gate, and the exploit battery.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from woodshed.attacks.exploits.base import Exploit
from woodshed.attacks.exploits.battery import run_battery
from woodshed.attacks.exploits.catalogue import EXPLOITS
from woodshed.grading.verify import grade
from woodshed.record.jsonl import JsonLines
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, SandboxError
from woodshed.tasks.validate.guessing import stubs

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.tasks.packages.test_screen import STYLES

HONEST, FAKE = "honest", "fake"
SOLUTION = "the solution"
ROUNDS = 40
"""Maximum number of different honest solutions, or fakes, tried on one task."""

Verdict = dict[str, Any]
"""``task``, ``digest``, ``kind``, ``name``, ``accepted``, ``detail``."""


async def audit(
    folder: Path, backend: Backend, layers: LayerStore, *, honest: int, fakes: int, parallel: int
) -> list[Verdict]:
    """Make up to ``honest`` and ``fakes`` gradings, spread over the tasks of ``folder``; return the verdicts."""
    tasks = [Task.load(path.parent) for path in folder.glob("*/task.toml")]
    tasks.sort(key=lambda task: hashlib.sha256(task.name.encode()).digest())
    lines = JsonLines(folder / ".audit.jsonl")
    known = {(row["digest"], row["kind"], row["name"]): row for row in lines.rows()}
    turns = asyncio.Semaphore(parallel)
    wanted = [*plan(tasks, HONEST, honest), *plan(tasks, FAKE, fakes)]

    async def one(task: Task, kind: str, name: str) -> Verdict | None:
        if (row := known.get((task.digest, kind, name))) is not None:
            return row
        async with turns:
            try:
                found = await _GRADERS[kind](task, name, backend, layers)
            except SandboxError as error:  # tried again at the next start
                print(f"{task.name}: {name}: {error}", flush=True)
                return None
        if found is None:
            return None
        accepted, detail = found
        row = {
            "task": task.name,
            "digest": task.digest,
            "kind": kind,
            "name": name,
            "accepted": accepted,
            "detail": detail,
        }
        lines.append(row)
        return row

    made = await asyncio.gather(*(one(*each) for each in wanted))
    return [row for row in made if row is not None]


def figures(verdicts: Sequence[Verdict]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return (figures, detail with the verdicts that are wrong)."""
    honest = [row for row in verdicts if row["kind"] == HONEST]
    fakes = [row for row in verdicts if row["kind"] == FAKE]
    wrong = [row for row in honest if not row["accepted"]] + [row for row in fakes if row["accepted"]]
    numbers: dict[str, float | None] = {
        "honest_tried": len(honest),
        "honest_refused": sum(not row["accepted"] for row in honest),
        "fakes_tried": len(fakes),
        "fakes_accepted": sum(row["accepted"] for row in fakes),
    }
    kept = ("task", "kind", "name", "detail")
    return numbers, {
        "audited_tasks": len({row["task"] for row in verdicts}),
        "wrong": [{key: row[key] for key in kept} for row in wrong],
    }


def plan(tasks: Sequence[Task], kind: str, most: int) -> Iterator[tuple[Task, str, str]]:
    """Yield at most ``most`` (task, kind, name), first one for each task, then a second one for each, and so on."""
    chosen = [_drawn(task, kind) for task in tasks]
    count = 0
    for number in range(ROUNDS):
        for task, names in zip(tasks, chosen):
            if number < len(names) and count < most:
                count += 1
                yield task, kind, names[number]


def _drawn(task: Task, kind: str) -> list[str]:
    """Return the names of the solutions or fakes that fit a task, in a random order that depends on the task."""
    if kind == HONEST:
        names = [SOLUTION, *(STYLES if task.info.grader == "pytest" else ())]
    else:
        guessed = [f"stub {number}" for number, _ in enumerate(stubs(task))]
        names = [*guessed, *(e.name for e in _fitting(task))]
    random.Random(f"{kind}:{task.name}").shuffle(names)
    return names


def _fitting(task: Task) -> list[Exploit]:
    return [e for e in EXPLOITS if task.info.grader in e.graders and not e.hangs]


async def _honest(task: Task, name: str, backend: Backend, layers: LayerStore) -> tuple[bool, str] | None:
    files = task.solution_files()
    if name != SOLUTION:
        path = min(path for path in files if path.endswith(".py"))
        code = "".join(f"    {line}\n" for line in STYLES[name].splitlines())
        files[path] = files[path].rstrip(b"\n") + f"\n\n\ndef _woodshed_style():\n    import sys\n{code}".encode()
    outcome = await grade(task, files, backend, layers)
    failed = [f"{test} {status}" for test, status in outcome.tests.items() if status != "passed"]
    return outcome.resolved, outcome.detail or ", ".join(failed[:3])


async def _fake(task: Task, name: str, backend: Backend, layers: LayerStore) -> tuple[bool, str] | None:
    if name.startswith("stub "):
        number = int(name.removeprefix("stub "))
        outcome = await grade(task, stubs(task)[number], backend, layers)
        return outcome.resolved, f"stub {number}: {outcome.detail}"
    chosen = [exploit for exploit in _fitting(task) if exploit.name == name]
    (attempt,) = await run_battery([task], backend, layers, exploits=chosen, concurrency=1)
    if attempt.verdict == "infrastructure":
        raise SandboxError(attempt.detail)
    return None if attempt.verdict == "not applicable" else (attempt.verdict == "rewarded", attempt.detail)


_GRADERS: dict[str, Callable[[Task, str, Backend, LayerStore], Awaitable[tuple[bool, str] | None]]] = {
    HONEST: _honest, FAKE: _fake,
}  # fmt: skip
