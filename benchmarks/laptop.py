"""The main job with several seeds: ``python benchmarks/laptop.py [--seeds 0 1 2] [--work runs/bench-laptop]``.

Each seed draws its own tasks' order, demonstrations, initial weights and samples; the held-out tasks are the same, and
held-out means functions whose meaning never occurs in any training text. Give it an idle machine: the minutes are
wall-clock. Finished runs under ``--work`` are not run again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from recipe_runs import learned, run_recipe, stage_minutes
from result import write_result

from woodshed.record.run_directory import RunDirectory, write_json

RECIPE = Path(__file__).parent.parent / "recipes" / "laptop.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/bench-laptop"))
    args = parser.parse_args()
    detail: dict[str, Any] = {}
    for seed in args.seeds:
        out = args.work / f"seed{seed}"
        if not (out / "minutes.json").exists():
            if out.exists():
                raise SystemExit(f"{out} was interrupted, so its minutes are not known; delete it and run again")
            started = time.monotonic()
            run_recipe(RECIPE, out, seed=seed)
            write_json(out / "minutes.json", (time.monotonic() - started) / 60)
        run = RunDirectory(out.absolute())
        result = learned(run)
        if result is None:
            raise SystemExit(f"{out} has no evaluations")
        transfer = learned(run, "-packages")
        detail[f"seed {seed}"] = {
            "minutes": float((out / "minutes.json").read_text()),
            "minutes_by_stage": stage_minutes(run),
            "heldout_tasks": len(result.before.tasks),
            **result.figures(),
            "real_packages": transfer.figures() if transfer else None,
        }
        write(detail)


def write(detail: dict[str, Any]) -> None:
    """The result of the seeds so far; written after each, so that a benchmark that is stopped loses nothing."""
    rows = list(detail.values())
    best = [row["best_change"]["mean"] for row in rows]
    write_result(
        "laptop",
        {
            "seeds": len(rows),
            "heldout_tasks": min(row["heldout_tasks"] for row in rows),
            "minutes_max": max(row["minutes"] for row in rows),
            "pass1_before_mean": sum(row["pass1_before"]["mean"] for row in rows) / len(rows),
            "pass1_after_min": min(row["pass1_after"]["mean"] for row in rows),
            "gain_ci95_low_min": min(row["gain"]["low"] for row in rows),
            "best8_change_min": min(best),
        },
        detail,
    )


if __name__ == "__main__":
    main()
