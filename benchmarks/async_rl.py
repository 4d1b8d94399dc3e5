"""Compare synchronous and asynchronous RL with the same budget: ``python benchmarks/async_rl.py --base runs/laptop``.

Both start from the same finished SFT policy (``--base``, a run of recipes/laptop.toml that got at least as far as its
first evaluation) and train the same number of steps on the same prompts. Synchronous means: dispatch one batch, wait
for all of it, train, wait for the weights, dispatch the next. Runs alternate; figures are medians. The first steps are
left out, because there both modes only fill the pipeline.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from recipe_runs import run_recipe
from result import write_result

from woodshed.evaluate.arms import BEFORE
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.run.plan import plan

MODES = {"sync": ['rl.mode="sync"', "rl.max_staleness=0"], "async": ['rl.mode="async"', "rl.max_staleness=1"]}
WARMUP = 3
TINY_EVALUATION = [f"evaluate.{name}=1" for name in ("tasks", "samples", "dev_tasks", "dev_samples")]
TINY_EVALUATION += ["evaluate.baselines=false", "learn.solved.after_rl=false"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/laptop"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-async"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in range(args.runs):
        for mode, settings in MODES.items():
            out = args.work / f"{mode}{number}"
            if not (out / "stages" / "rl.json").exists():
                branch(args.base, out, [*settings, f"rl.steps={args.steps}", *TINY_EVALUATION])
            rows[mode].append(measure(run_recipe(out, out), args.steps))
            print(mode, rows[mode][-1], flush=True)
    middle = {m: {k: statistics.median(r[k] for r in found) for k in found[0]} for m, found in rows.items()}
    write_result(
        "async",
        {
            "samples_per_min_sync": middle["sync"]["samples_per_min"],
            "samples_per_min_async": middle["async"]["samples_per_min"],
            "idle_share_engine": middle["async"]["idle_share_engine"],
            "idle_share_trainer": middle["async"]["idle_share_trainer"],
        },
        {"steps": args.steps, "left_out": WARMUP, "medians": middle, "runs": rows},
    )


def branch(base: Path, out: Path, overrides: list[str]) -> None:
    """Copy a run as it was after SFT, with overrides of its recipe; what came after is run anew. Exits if ``base`` has
    not got that far."""
    source, target = RunDirectory(base.absolute()), RunDirectory(out.absolute())
    if source.stage_result("before") is None:
        raise SystemExit(f"{base} has not evaluated its SFT policy yet; give a run that has (--base)")
    shutil.rmtree(target.root, ignore_errors=True)
    for name in ("policy", "tasks", "stages", "corpus", "demonstrations"):
        if (source.root / name).exists():
            shutil.copytree(source.root / name, target.root / name, symlinks=True)
    recipe = load_recipe(source.recipe, overrides)
    stages = [stage.name for stage in plan(recipe, source)]
    early = stages[: stages.index(BEFORE)]
    for path in (target.root / "stages").glob("*.json"):
        if path.stem not in early:
            path.unlink()
    target.recipe.write_text(dump_recipe(recipe))


def measure(run: RunDirectory, steps: int) -> dict[str, float]:
    trainer = _lines(run.stage_metrics("trainer"))
    rollouts = _lines(run.stage_metrics("rollouts"))
    first, last = trainer[WARMUP - 1], trainer[steps - 1]
    minutes = (last["time"] - first["time"]) / 60
    counted = trainer[WARMUP:steps]
    idle = sum(line["idle_seconds"] for line in counted)
    busy = sum(line["busy_seconds"] for line in counted)
    engine = [line["engine"] for line in rollouts if line["engine"]]
    start, end = engine[min(WARMUP, len(engine) - 2)], engine[-1]
    worked = end["busy_seconds"] - start["busy_seconds"]
    passed = end["uptime_seconds"] - start["uptime_seconds"]
    episodes = statistics.mean(line["rollouts"] for line in rollouts)
    return {
        "steps_per_min": len(counted) / minutes,
        "samples_per_min": len(counted) * episodes / minutes,
        "idle_share_trainer": idle / (idle + busy),
        "idle_share_engine": 1 - worked / passed,
        "staleness_mean": statistics.mean(line.get("staleness_mean", 0.0) for line in counted),
        "staleness_max": max(line.get("staleness_max", 0.0) for line in counted),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
