"""Kill (kill -9) a build of tasks at random moments, and check that its result equals that of an undisturbed build.

    python benchmarks/task_kills.py [--kills 20] [--per-source 6] [--source SPEC ...] [--seed 0]

Every build has its own cache, so that the making of wheels, layers and suites is interrupted too. Each kill comes
within a fifth of the time that the undisturbed build took. If a build finishes before all kills were made, another one
starts from nothing. Every file that is not hidden must be the same, byte by byte. Writes results/tasks_kills.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result import write_result
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SOURCES = ("pypi:inflection==0.5.1", "pypi:humanize==4.17.0", "npm:flat@5.0.2")


def build(sources: list[str], per_source: int, out: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "woodshed.cli",
        "tasks",
        "build",
        *sources,
        "--out",
        str(out),
        "--per-source",
        str(per_source),
        "--level",
        "mixed",
    ]
    environment = {**os.environ, "WOODSHED_CACHE": str(cache)}
    with (out.parent / f"{out.name}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def tree(folder: Path) -> dict[str, bytes]:
    files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    return {str(n): p.read_bytes() for n, p in files.items() if not n.parts[0].startswith(".")}


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait() != 0:
        raise SystemExit(f"a build ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")


def disturbed(
    sources: list[str],
    per_source: int,
    scratch: Path,
    number: int,
    length: float,
    rng: random.Random,
    most: int,
    progress: Progress,
) -> tuple[Path, int]:
    """Run a build that is killed at most ``most`` times and then runs to its end; return its folder and the number of
    kills."""
    out, cache = scratch / f"killed-{number}", scratch / f"cache-{number}"
    kills = 0
    while kills < most:
        process = build(sources, per_source, out, cache)
        time.sleep(rng.uniform(0.02, 0.2) * length)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        progress.advance(progress.task_ids[0])
    finish(build(sources, per_source, out, cache), scratch / f"{out.name}.log")
    return out, kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--per-source", type=int, default=6)
    parser.add_argument("--source", action="append", help=f"instead of {', '.join(SOURCES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="instead of results/tasks_kills.json")
    options = parser.parse_args()
    sources = options.source or list(SOURCES)
    rng, kills, different, builds = random.Random(options.seed), 0, 0, 0
    columns = (TextColumn("kills"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="task-kills-") as folder:
        scratch = Path(folder)
        steady = scratch / "steady"
        start = time.monotonic()
        finish(build(sources, options.per_source, steady, scratch / "cache"), scratch / "steady.log")
        length, wanted = time.monotonic() - start, tree(steady)
        with Progress(*columns, console=Console(stderr=True)) as progress:
            progress.add_task("", total=options.kills)
            while kills < options.kills:
                most = options.kills - kills
                out, more = disturbed(sources, options.per_source, scratch, builds, length, rng, most, progress)
                kills, builds = kills + more, builds + 1
                different += tree(out) != wanted
        tasks = sum(name.endswith("/task.toml") for name in wanted)
    figures: dict[str, float | None] = {
        "kills": kills,
        "builds": builds,
        "tasks": tasks,
        "files": len(wanted),
        "different_results": different,
    }
    write_result("tasks_kills", figures, {"sources": sources, "seconds_undisturbed": round(length, 1)}, options.out)


if __name__ == "__main__":
    main()
