"""SmolLM2-135M on real packages: ``python benchmarks/smollm2.py [--work runs/bench-smollm2] [--set KEY=VALUE ...]``.

One run of recipes/smollm2.toml; ``--set`` overrides its fields (on a GPU, more and larger steps fit).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipe_runs import learned, run_recipe, stage_minutes
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
    if result is None:
        raise SystemExit(f"{args.work} has no evaluations")
    lines = [json.loads(line) for line in run.stage_metrics("trainer").read_text().splitlines()]
    rollouts = [json.loads(line) for line in run.stage_metrics("rollouts").read_text().splitlines()]
    figures = result.figures()
    write_result(
        "smollm2",
        {
            "rl_steps": len(lines),
            "heldout_tasks": len(result.before.tasks),
            "pass1_before": figures["pass1_before"]["mean"],
            "pass1_after": figures["pass1_after"]["mean"],
            "gain_ci95_low": figures["gain"]["low"],
            "best8_change": figures["best_change"]["mean"],
        },
        {
            "overrides": overrides,
            "samples_per_task": result.before.samples,
            "minutes_by_stage": stage_minutes(run),
            **figures,
            "training_pass_rate": [row["pass_rate"] for row in rollouts],
        },
    )


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
