"""SmolLM2-135M on real packages: ``python benchmarks/smollm2.py [--work runs/bench-smollm2] [--set KEY=VALUE ...]``.

One run of recipes/smollm2.toml; ``--set`` overrides its fields (on a GPU, more and larger steps fit).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipe_runs import figures_of, learned, over_seeds, run_recipe, stage_minutes
from result import write_result

RECIPE = Path(__file__).parent.parent / "recipes" / "smollm2.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/bench-smollm2"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    overrides = {key: _value(text) for key, _, text in (pair.partition("=") for pair in args.set)}
    run = run_recipe(RECIPE, args.work, **overrides)
    result = learned(run)
    lines = [json.loads(line) for line in run.stage_metrics("trainer").read_text().splitlines()]
    rollouts = [json.loads(line) for line in run.stage_metrics("rollouts").read_text().splitlines()]
    minutes = stage_minutes(run)
    figures = over_seeds([figures_of(result)]) | {"rl_steps": len(lines), "hours_max": sum(minutes.values()) / 60}
    detail = {
        "overrides": overrides,
        "minutes_by_stage": minutes,
        **result.detail(),
        "training_pass_rate": [row["pass_rate"] for row in rollouts],
    }
    write_result("smollm2", figures, detail)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
