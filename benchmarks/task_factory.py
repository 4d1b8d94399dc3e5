"""Measure number and cost of validated tasks from real packages, and whether the leak scan finds planted leaks.

    python benchmarks/task_factory.py [--per-source 150] [--dir runs/task-factory] [--source SPEC ...]

Runs the documented command (`woodshed tasks build`) over the sources below, grades honest solutions and fakes on the
kept tasks (task_audit.py) and writes results/tasks.json. If killed, the same command continues, and the seconds of all
starts count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from result import write_result
from task_audit import Verdict, audit
from task_audit import figures as audited

from woodshed.record.cache import cache_directory
from woodshed.record.task import Task
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.change import change_of
from woodshed.tasks.generators.packages.cost import spent
from woodshed.tasks.library.statistics import collect
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.validate.leaks import scan

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.tasks.packages import test_leaks as planted  # noqa: E402  (the planted leaks live in the tests only)

BEYOND = (
    "pypi:more-itertools==11.2.1",
    "pypi:mistune==3.4.0",
    "pypi:humanize==4.17.0",
    "pypi:inflect==7.6.0",
    "pypi:parso==0.8.7",
    "pypi:glom==25.12.0",
    "npm:object-path@0.11.8",
    "npm:secure-json-parse@4.1.1",
    "npm:flat@5.0.2",
    "npm:json-schema-ref-resolver@3.0.1",
)
"""Packages that are not in the catalogue: the build finds layout, test requirements and suite. The last four are for
Node."""

PUBLISHED = {
    "SWE-smith procedural on toolz 1.2.0": 0.83, "SWE-smith procedural on boltons 26.2.0": 0.58,
    "one function body on toolz 1.2.0": 0.92, "one function body on boltons 26.2.0": 0.62,
    "SWE-smith combine (reported)": 0.97, "SWE-smith procedural (reported)": 0.40,
    "SWE-smith PR mirror (reported)": 0.34,
}  # fmt: skip
"""Shares of candidates with a failing and a passing test, for comparison. The first four were measured on a machine
like this one, without the other gates and without selection by coverage."""


def build(sources: list[str], per_source: int, folder: Path, more: list[str]) -> float:
    """Run the build to its end; return the seconds of all its runs so far."""
    clock = folder / "seconds.json"
    spent = json.loads(clock.read_text()) if clock.exists() else 0.0
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "woodshed.cli",
        "tasks",
        "build",
        *sources,
        "--out",
        str(folder / "tasks"),
        "--per-source",
        str(per_source),
        "--per-function",
        "3",
        "--level",
        "mixed",
        "--multi-file-share",
        "0.4",
        *more,
    ]
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the build ends with this program
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            time.sleep(1.0)
            clock.write_text(json.dumps(spent + time.monotonic() - start))
    finally:
        process.terminate()
        process.wait()
    if process.returncode not in (0, 1):  # 1: a source gave nothing; the table says which
        raise SystemExit(process.returncode)
    return float(json.loads(clock.read_text()))


def leaks() -> tuple[int, dict[str, bool]]:
    """Return the number of kinds of planted leaks, and for each kind whether both of its plants were found."""
    found: dict[str, bool] = {}
    for kind, (name, pack) in planted.PLANTS.items():
        hits = []
        for start in (planted.MUTANT, planted.DELETED):
            before = {"shapes.py": start, "tests/test_shapes.py": planted.TESTS}
            leaked = scan({**before, name: pack(planted.GOLD)}, before, {"shapes.py": planted.GOLD})
            hits.append([leak.path for leak in leaked] == [name])
        found[kind] = all(hits)
    return len(found), found


def measure(folder: Path, seconds: float) -> tuple[dict[str, float | None], dict[str, Any]]:
    lines = json.loads((folder / "tasks" / "yield.json").read_text())
    vetted = load_catalogue().packages
    used = [line for line in lines if line["kept"]]
    kept, tried = sum(line["kept"] for line in lines), sum(line["tried"] for line in lines)
    kinds: Counter[tuple[str, int]] = Counter()
    for line in lines:
        for kind, both in line["kinds"].items():
            kinds[kind, 0] += both[0]
            kinds[kind, 1] += both[1]
    reasons: Counter[str] = Counter()
    for line in lines:
        reasons.update(line["rejected"])
    count, plants = leaks()
    statistics = collect([folder / "tasks"])
    tasks = [Task.load(path.parent) for path in sorted((folder / "tasks").glob("*/task.toml"))]
    measured = [float(t.info.quality["mutation_score"]) for t in tasks if "mutation_score" in t.info.quality]
    shares = [float(t.info.quality["guard_share"]) for t in tasks if "guard_share" in t.info.quality]
    deleted = [change_of(t) for t in tasks if t.info.provenance.get("generator", "").startswith("delete_")]
    several = [change for change in deleted if len(change.files) > 1]
    figures: dict[str, float | None] = {
        "repositories": len(used),
        "repositories_autoinstalled": sum(line["package"] not in vetted for line in used),
        "kept_tasks": kept,
        "kept_share": round(kept / max(1, tried), 3),
        "seconds_per_kept_task": round(seconds / max(1, kept), 2),
        "deletion_tasks_multi_file_share": round(len(several) / len(deleted), 3) if deleted else None,
        "required_share_of_stable_tests": round(sum(shares) / len(shares), 3) if shares else None,
        "tasks_per_core_hour": round(kept / (spent(folder / "tasks") / 3600), 1),
        "planted_leaks": count,
        "planted_leaks_found": sum(plants.values()),
    }
    names = sorted({kind for kind, _ in kinds})
    detail = {
        "by_kind": {
            k: {"tried": kinds[k, 0], "kept": kinds[k, 1], "share": round(kinds[k, 1] / kinds[k, 0], 3)} for k in names
        },
        "published_shares": PUBLISHED,
        "by_source": lines,
        "rejected": dict(reasons.most_common()),
        "seconds": round(seconds, 1),
        "mutation_score_mean": round(sum(measured) / len(measured), 3) if measured else None,
        "guards": dict(Counter(t.info.quality.get("guard", "") for t in tasks)),
        "multi_file_deletions_median_lines": median(c.lines for c in several) if several else None,
        "task_toml_kib_median": round(median((t.path / "task.toml").stat().st_size for t in tasks) / 1024, 1),
        "medians": statistics.groups()["generator"],
        "near_duplicates_across_splits": sum(p.crosses for p in statistics.duplicates),
        "planted": plants,
    }
    return figures, detail


def audit_of(folder: Path, honest: int, fakes: int) -> list[Verdict]:
    """Return the verdicts on honest solutions and fakes."""

    async def run() -> list[Verdict]:
        backend, layers = open_backend(), LayerStore(cache_directory() / "layers")
        try:
            parallel = len(os.sched_getaffinity(0))
            return await audit(folder, backend, layers, honest=honest, fakes=fakes, parallel=parallel)
        finally:
            await backend.close()

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--per-source", type=int, default=150, help="tasks wanted of each source")
    parser.add_argument("--dir", type=Path, default=Path("runs/task-factory"), help="where the build works")
    parser.add_argument("--source", action="append", help="instead of the catalogue and ten packages beyond it")
    parser.add_argument("--honest", type=int, default=600, help="honest solutions graded on kept tasks")
    parser.add_argument("--fakes", type=int, default=600, help="stubs and exploits graded on kept tasks")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/tasks.json")
    parser.add_argument("--build", action="append", default=[], help="one more word for the build command")
    arguments = parser.parse_args()
    catalogue = [f"pypi:{p.name}=={p.version}" for p in load_catalogue().packages.values()]
    sources = arguments.source or [*catalogue, *BEYOND]
    seconds = build(sources, arguments.per_source, arguments.dir, arguments.build)
    figures, detail = measure(arguments.dir, seconds)
    numbers, wrong = audited(audit_of(arguments.dir / "tasks", arguments.honest, arguments.fakes))
    write_result("tasks", figures | numbers, detail | wrong, arguments.out)


if __name__ == "__main__":
    main()
