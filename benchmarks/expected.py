"""Make the expected curves of a recipe from finished runs of it: ``python benchmarks/expected.py RUN RUN...``.

Writes ``recipes/NAME.expected.json``, with which ``woodshed run`` compares later runs. Give at least two runs of the
unchanged recipe, with different seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from laptop import BASELINE_STAGES
from recipe_runs import stage_minutes
from result import commit, hardware

from woodshed.recipe.load import BUILTIN, load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.view.expected import digest_of, expected_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    runs = [RunDirectory(path.absolute()) for path in args.runs]
    recipes = [load_recipe(run.recipe) for run in runs]
    digests = {digest_of(recipe.model_dump(mode="json", exclude_defaults=True)) for recipe in recipes}
    if len(digests) > 1:
        parser.error("the runs have different recipes; only their seeds may differ")
    minutes = [minutes_of(run) for run in runs]
    summaries = [json.loads(path.read_text()) for run in runs if (path := run.root / "summary.json").exists()]
    arms = sorted({name for summary in summaries for name in summary["arms"]})
    figures = {
        f"{name}_pass1": [round(s["arms"][name]["pass1"]["mean"], 4) for s in summaries if name in s["arms"]]
        for name in arms
    }
    made = expected_of(
        [run.root for run in runs],
        recipe=recipes[0].name,
        digest=digests.pop(),
        seeds=[recipe.seed for recipe in recipes],
        hardware=hardware(),
        commit=commit(),
        minutes=[round(each, 2) for each in minutes],
        figures=figures,
    )
    path = args.out or BUILTIN / f"{made.recipe}.expected.json"
    made.save(path)
    print(f"{path}: {', '.join(made.curves)}")


def minutes_of(run: RunDirectory) -> float:
    """Return the minutes of the main job, without baselines. If ``laptop.py`` did not measure the run, they are the sum
    over its stages, some of which ran side by side."""
    by_stage, measured = stage_minutes(run), run.root / "minutes.json"
    if measured.exists():
        return float(measured.read_text()) - sum(by_stage.get(stage, 0.0) for stage in BASELINE_STAGES)
    return sum(minutes for stage, minutes in by_stage.items() if stage not in BASELINE_STAGES)


if __name__ == "__main__":
    main()
