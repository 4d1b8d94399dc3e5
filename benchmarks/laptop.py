"""Run the main job and its baselines with several seeds: ``python benchmarks/laptop.py [--seeds 0 1 2]``.
``--recipe evening`` does the same with that recipe, for an hour and a half per seed and as much for its baselines.

Each seed draws its own tasks, demonstrations, initial weights and samples; development and held-out tasks are the same
in all. Every policy is sampled at its best temperature on the development tasks; a gain is over the best of the
baselines, paired by task. Use an idle machine: the minutes are wall-clock minutes of the main job, without the
baselines, which come after it. Finished runs under ``--work`` are not run again. Interrupted ones are continued, and
their minutes are not known.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from recipe_runs import Learned, figures_of, learned, run_recipe, stage_minutes
from result import write_result

from woodshed.evaluate.arms import ALONE, OTHER, REJECTION, stage_of
from woodshed.recipe.load import load_recipe
from woodshed.recipe.rounds import rounds_of
from woodshed.record.run_directory import RunDirectory, write_json

BASELINE_STAGES = (stage_of(ALONE), OTHER, stage_of(OTHER), "sample", REJECTION, stage_of(REJECTION))
RECIPES = Path(__file__).parent.parent / "recipes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipe", choices=("laptop", "evening"), default="laptop")
    parser.add_argument("--work", type=Path, default=None, help="where the runs are kept; default: runs/bench-RECIPE")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/RECIPE.json")
    args = parser.parse_args()
    work = args.work or Path(f"runs/bench-{args.recipe}")
    detail: dict[str, Any] = {}
    seeds: list[Learned] = []
    for seed in args.seeds:
        out = work / f"seed{seed}"
        run, measured = RunDirectory(out.absolute()), out / "minutes.json"
        if run.stage_result(stage_of(REJECTION)) is None:
            whole, started = not out.exists(), time.monotonic()
            run_recipe(RECIPES / f"{args.recipe}.toml", out, seed=seed, **{"evaluate.baselines": True})
            if whole:
                write_json(measured, (time.monotonic() - started) / 60)
        result = learned(run)
        by_stage = stage_minutes(run)
        after = sum(minutes for stage, minutes in by_stage.items() if stage in BASELINE_STAGES)
        recipe = load_recipe(run.recipe)
        in_rl = sum(by_stage[each.own("rl")] for each in rounds_of(recipe))
        seeds.append(result)
        detail[f"seed {seed}"] = {
            "minutes": float(measured.read_text()) - after if measured.exists() else None,
            "minutes_by_stage": by_stage,
            "rl_steps_per_minute": recipe.rl.steps / in_rl,
            **result.detail(),
        }
        # Written after each seed, so that a benchmark that is stopped loses nothing.
        rows = list(detail.values())
        minutes = [row["minutes"] for row in rows]
        figures: dict[str, float | None] = {
            **figures_of(seeds),
            "minutes_max": None if None in minutes else max(minutes),
            "rl_steps_per_minute": min(row["rl_steps_per_minute"] for row in rows),
        }
        write_result(args.recipe, figures, detail, args.out)


if __name__ == "__main__":
    main()
