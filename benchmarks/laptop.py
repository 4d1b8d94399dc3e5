"""Run the main job and its baselines with several seeds: ``python benchmarks/laptop.py [--seeds 0 1 2]``.
``--recipe evening`` does the same with that recipe, for two hours per seed and one and a half for its baselines.

Each seed draws its own tasks, demonstrations, initial weights and samples; development and held-out tasks are the same
in all. Every policy is sampled at its best temperature on the development tasks; a gain is over the best of the
baselines, paired by task. Use an idle machine: the minutes are wall-clock minutes of the main job, without the
baselines, which come after it. Finished runs under ``--work`` are not run again. Interrupted ones are continued, and
their minutes are not known. With ``--add``, seeds that the result has already are kept, so each can be run
alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from recipe_runs import earlier_seeds, figures_of, learned, over_seeds, run_recipe, stage_minutes
from result import RESULTS, commit, write_result

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
    parser.add_argument("--add", action="store_true", help="keep the other seeds of the result")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/RECIPE.json")
    args = parser.parse_args()
    work, path = args.work or Path(f"runs/bench-{args.recipe}"), args.out or RESULTS / f"{args.recipe}.json"
    detail: dict[str, Any] = earlier_seeds(path) if args.add else {}
    for seed in args.seeds:
        out = work / f"seed{seed}"
        run, measured = RunDirectory(out.absolute()), out / "minutes.json"
        if run.stage_result(stage_of(REJECTION)) is None:
            whole, started = not out.exists(), time.monotonic()
            run_recipe(RECIPES / f"{args.recipe}.toml", out, seed=seed, **{"evaluate.baselines": True})
            if whole:
                write_json(measured, (time.monotonic() - started) / 60)
        row = {"commit": commit(), **measures(run, json.loads(measured.read_text()) if measured.exists() else None)}
        detail = dict(sorted({**detail, f"seed {seed}": row}.items()))
        # Written after each seed, so that a benchmark that is stopped loses nothing.
        write_result(args.recipe, over_seeds([each["figures"] for each in detail.values()]), detail, path)


def measures(run: RunDirectory, minutes: float | None) -> dict[str, Any]:
    """Return what a result says of one seed. ``minutes``: how long the run and its baselines took, None if unknown."""
    by_stage, result, recipe = stage_minutes(run), learned(run), load_recipe(run.recipe)
    alone = None if minutes is None else minutes - sum(by_stage.get(stage, 0.0) for stage in BASELINE_STAGES)
    steps = recipe.rl.steps / sum(by_stage[each.own("rl")] for each in rounds_of(recipe))
    figures = {**figures_of(result), "minutes_max": alone, "rl_steps_per_minute": steps}
    return {"minutes": alone, "minutes_by_stage": by_stage, **result.detail(), "figures": figures}


if __name__ == "__main__":
    main()
