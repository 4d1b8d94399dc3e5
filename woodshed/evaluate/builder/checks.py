"""What a task must pass before it is locked: the gates, the corpus, and independent readings of its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from woodshed.record.jsonl import JsonLines, read_jsonl
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.validate.gates import check_task

from .accepted import keep_accepted
from .ambiguity import Agreement, Endpoint, agreement_of, sample_readings
from .overlap import Overlap, corpus_texts, overlaps
from .settings import BenchmarkSettings

READINGS = "readings.jsonl"


@dataclass(frozen=True)
class Checked:
    """``failed``: why the task is left out, or ''; ``gates``: of ``check_task`` that failed -> why."""

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
    """Run every gate (the solution scores 1 twice, the untouched workspace 0, nothing leaks, ...), then the readings.

    Readings that resolve the task are kept as accepted solutions; readings of the same task, model and temperature are
    not sampled again.
    """
    report = await check_task(task, backend, layers)
    if report.failures:
        told = "; ".join(f"{gate}: {why}" for gate, why in report.failures.items())
        return Checked(f"gate {told}", report.failures)
    if endpoint is None:
        return Checked()
    agreement = await _readings(folder, task, settings, backend, layers, endpoint)
    if agreement.agreement is not None and agreement.agreement < settings.min_agreement:
        return Checked(f"ambiguous: readings agree on {agreement.agreement:.0%} of the tests", {}, agreement)
    return Checked(agreement=agreement)


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
    """Name of a task -> the largest overlap with a text of ``folders``, of those over ``settings.max_overlap``."""
    found: dict[str, Overlap] = {}
    for overlap in overlaps(tasks, corpus_texts(folders), settings.max_overlap):
        if overlap.task not in found or found[overlap.task].share < overlap.share:
            found[overlap.task] = overlap
    return found


def readings_of(folder: Path, name: str) -> list[Agreement]:
    """The agreements measured of a task, oldest first."""
    path = folder / READINGS
    rows = read_jsonl(path) if path.exists() else []
    return [Agreement(**row["agreement"]) for row in rows if row.get("task") == name]
