"""Measure what RL adds to its rounds: ``python benchmarks/rounds.py --base runs/bench-evening [--seeds 1]``.

``--base`` has finished runs with several rounds (``benchmarks/laptop.py --recipe evening`` makes them). The control is
the same run from the same SFT policy with an optimizer that moves nothing: each round samples as many rollouts from the
policy that it begins with and ends with learning anew from all that was solved (expert iteration). Its optimizer steps
are computed, so it takes as long as the run. Finished runs under ``--work`` are not run again, interrupted ones are
continued; with ``--add``, seeds that the result has already are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from async_rl import branch
from recipe_runs import earlier_seeds, interval, learned, over_seeds, run_recipe
from result import RESULTS, commit, write_result

from woodshed.evaluate.arms import AFTER, REJECTION
from woodshed.record.run_directory import RunDirectory
from woodshed.view.summary import gains

STILL = ('train.optimizer={kind="adamw",lr=1e-12}', "evaluate.baselines=false")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/bench-evening"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-rounds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--add", action="store_true", help="keep the other seeds of the result")
    parser.add_argument("--out", type=Path, default=RESULTS / "rounds.json", help="the result; default: %(default)s")
    args = parser.parse_args()
    detail: dict[str, Any] = earlier_seeds(args.out) if args.add else {}
    for seed in args.seeds:
        base = RunDirectory((args.base / f"seed{seed}").absolute())
        run = RunDirectory((args.work / f"seed{seed}").absolute())
        if not run.recipe.exists():
            branch(base.root, run.root, list(STILL))
        if run.stage_result(AFTER) is None:
            run_recipe(run.root, run.root)
        detail = dict(sorted({**detail, f"seed {seed}": {"commit": commit(), **compare(base, run)}}.items()))
        write_result("rounds", over_seeds([each["figures"] for each in detail.values()]), detail, args.out)


def compare(base: RunDirectory, run: RunDirectory) -> dict[str, Any]:
    """Return the held-out rates of the results of ``base`` and its control ``run``, and of the control after each
    round."""
    with_rl, control = learned(base), learned(run)
    result, still = with_rl.arms[AFTER], control.arms[AFTER]
    gain, best = gains(still, result)
    figures: dict[str, float | None] = {
        "heldout_tasks": len(still.tasks),
        "rl_best_mean": result.pass1.mean,
        "rounds_best_mean": still.pass1.mean,
        "rl_over_rounds_mean": gain.mean,
        "rl_over_rounds_ci95_low_min": gain.low,
        f"rl_over_rounds_best{still.samples}_min": best.mean,
    }
    if REJECTION in with_rl.arms:
        figures["rejection_sft_best_mean"] = with_rl.arms[REJECTION].pass1.mean
    return {
        "rl_over_rounds": interval(gain),
        f"rl_over_rounds_best{still.samples}": interval(best),
        "control": control.detail()["policies"],
        "figures": figures,
    }


if __name__ == "__main__":
    main()
