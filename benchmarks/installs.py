"""Measure which real packages are set up by rules, in how many tries, and whether tasks can be built from the result.

    python benchmarks/installs.py [--dir runs/installs] [--source SPEC ...]

Runs the documented commands (`woodshed tasks install`, `woodshed tasks build --install`) and writes
results/installs.json. Packages come from the public indexes; finished work is not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from result import write_result

SOURCES = (
    "pypi:cssselect==1.3.0", "pypi:asgiref==3.13.0", "pypi:humanize==4.17.0", "npm:flat@5.0.2",
    "npm:object-path@0.11.8", "npm:secure-json-parse@4.1.1", "npm:json-schema-ref-resolver@3.0.1",
)  # fmt: skip
"""Packages that need a compiled package, a pytest plugin, their metadata; for Node a runner, a linter, coverage,
types."""


def woodshed(*arguments: str | Path) -> str:
    """Run ``woodshed tasks ...`` and return its standard output. Exit code 1 is accepted: a source gave nothing, which
    the result says."""
    command = [sys.executable, "-m", "woodshed.cli", "tasks", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    return done.stdout


def line(outcome: dict[str, Any]) -> dict[str, Any]:
    locked = [f"{w['name']} {w['version']}" for w in outcome["wheels"]]
    locked += [f"{m['package']} {m['version']}" for m in outcome["modules"]]
    kept = ("source", "installed", "tries", "error", "plugins", "files", "notes")
    targets = [goal["command"] for goal in outcome["targets"]]
    return {**{key: outcome[key] for key in kept}, "targets": targets, "packages": len(locked), "locked": locked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("runs/installs"), help="where installs and tasks are kept")
    parser.add_argument("--source", action="append", help="instead of the seven packages")
    parser.add_argument("--per-source", type=int, default=2, help="tasks wanted of each source")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/installs.json")
    arguments = parser.parse_args()
    sources = arguments.source or list(SOURCES)
    outcomes = [line(one) for one in json.loads(woodshed("install", *sources, "--out", arguments.dir / "in", "--json"))]
    done = [one["source"] for one in outcomes if one["installed"]]
    built: list[dict[str, Any]] = []
    if done:
        folder = arguments.dir / "tasks"
        woodshed(
            "build",
            *done,
            "--install",
            arguments.dir / "in",
            "--out",
            folder,
            "--per-source",
            str(arguments.per_source),
        )
        built = json.loads((folder / "yield.json").read_text())
    tried, kept = (sum(one[key] for one in built) for key in ("tried", "kept"))
    figures: dict[str, float | None] = {
        "sources": len(outcomes),
        "installed": len(done),
        "tries_max": max(one["tries"] for one in outcomes),
        "packages_locked": sum(one["packages"] for one in outcomes),
        "candidates": tried,
        "kept_tasks": kept,
    }
    write_result("installs", figures, {"by_source": outcomes, "built": built}, arguments.out)


if __name__ == "__main__":
    main()
