"""Checks that a task must pass before it is locked: gates, overlap with a corpus, independent readings of its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from woodshed.grading.verify import grade
from woodshed.record.jsonl import JsonLines, read_jsonl
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.validate.leaks import scan_task

from .accepted import keep_accepted
from .ambiguity import Agreement, Endpoint, agreement_of, sample_readings
from .overlap import Overlap, corpus_texts, overlaps
from .settings import BenchmarkSettings

READINGS = "readings.jsonl"


@dataclass(frozen=True)
class Checked:
    """Result of ``check``. ``failed``: why the task is left out, or ''; ``gates``: reason by failed gate."""

    failed: str = ""
    gates: Mapping[str, str] = field(default_factory=dict)
    agreement: Agreement | None = None


async def check(
    folder: Path,
    task: Task,
    settings: BenchmarkSettings,
    backend: Backend,
    layers: LayerStore,
    endpoint: Endpoint | None,
) -> Checked:
    """Check the finished task, then sample readings.

    Its candidate has passed every gate of the task factory, and only the query is new. So it is enough that the
    solution scores 1, the untouched workspace 0, and workspace and query do not leak. Readings that resolve the task
    are kept as accepted solutions; readings of the same task, endpoint, model and temperature are not sampled again.
    """
    failures = await gates(task, backend, layers)
    if failures:
        return Checked("; ".join(f"gate {gate}: {why}" for gate, why in failures.items()), failures)
    if endpoint is None:
        return Checked()
    agreement = await _readings(folder, task, settings, backend, layers, endpoint)
    if agreement.agreement is not None and agreement.agreement < settings.min_agreement:
        return Checked(f"ambiguous: readings agree on {agreement.agreement:.0%} of the tests", {}, agreement)
    return Checked(agreement=agreement)


async def gates(task: Task, backend: Backend, layers: LayerStore) -> dict[str, str]:
    """Return the reasons of the gates that failed: ``oracle`` (the solution must score 1), ``no_op`` (the untouched
    workspace must score 0), ``leak``."""
    failures: dict[str, str] = {}
    solved = await grade(task, task.solution_files(), backend, layers)
    if not solved.resolved:
        failed = [test for test, status in solved.tests.items() if status != "passed"]
        failures["oracle"] = f"the solution scores 0: {', '.join(failed[:3]) or solved.detail}"
    untouched = await grade(task, {}, backend, layers)
    if untouched.resolved:
        failures["no_op"] = "passes before anything is changed"
    # Not in a thread: before CPython 3.11.9, parsing in two threads at once can raise a SystemError.
    for leak in scan_task(task)[:1]:
        failures["leak"] = f"{leak.path} holds {leak.share:.0%} of the answer ({leak.kind})"
    return failures


async def _readings(
    folder: Path, task: Task, settings: BenchmarkSettings, backend: Backend, layers: LayerStore, endpoint: Endpoint
) -> Agreement:
    key = [task.digest, endpoint.url, endpoint.model, settings.temperature, settings.readings]
    lines = JsonLines(folder / READINGS)
    for row in lines.rows():
        if row.get("key") == key:
            return Agreement(**row["agreement"])
    sampled = await sample_readings(
        task, endpoint, settings.readings, backend, layers, temperature=settings.temperature
    )
    for number, reading in enumerate(sampled):
        if reading.resolved:
            keep_accepted(folder, task, reading.submission, reading.outcome, f"reading {number} of {endpoint.model}")
    found = agreement_of(task, sampled)
    outcomes = [reading.outcome.tests for reading in sampled]
    lines.append({"key": key, "task": task.path.name, "agreement": asdict(found), "tests": outcomes})
    return found


def contaminated(tasks: Sequence[Task], folders: Sequence[Path], settings: BenchmarkSettings) -> dict[str, Overlap]:
    """Return, by name of the task, the largest overlap with a text of ``folders``, if over ``settings.max_overlap``."""
    if not folders:
        return {}
    found: dict[str, Overlap] = {}
    for overlap in overlaps(tasks, corpus_texts(folders), settings.max_overlap):
        if overlap.task not in found or found[overlap.task].share < overlap.share:
            found[overlap.task] = overlap
    return found


def readings_of(folder: Path, name: str) -> list[Agreement]:
    """Return the measured agreements of a task, oldest first."""
    path = folder / READINGS
    rows = read_jsonl(path) if path.exists() else []
    return [Agreement(**row["agreement"]) for row in rows if row.get("task") == name]
