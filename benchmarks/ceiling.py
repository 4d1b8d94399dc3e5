"""Measure the most that RL's tasks can teach: ``python benchmarks/ceiling.py --base runs/bench-laptop [--seeds 1]``.

``--base`` has finished runs with baselines (``benchmarks/laptop.py`` makes them; for those of the recipe ``evening``:
``--recipe evening --episodes 7200``). Here the final SFT of these runs is repeated with scripted repairs of all of RL's
tasks instead of what RL solved: from the same policy, with the same demonstrations, and with at least as many examples.
The held-out pass rate is what right repairs of these tasks teach by SFT. A run's result below it shows what RL did not
find; RL over several rounds can also end above it. ``--larger`` does the same with a policy of 2.9 million
parameters, pretrained on the same text. Finished folders under ``--work`` are not run again, others begin anew.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from async_rl import branch
from recipe_runs import interval, learned, run_recipe
from result import write_result

from woodshed.evaluate.arms import AFTER, BEFORE, REJECTION
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.stages.demonstrations import demonstrate
from woodshed.stages.examples import load_examples, save_examples
from woodshed.stages.tasks import task_folder
from woodshed.view.summary import Evaluation, evaluation, gains

# Every episode tests its edits and goes on until they pass. Some first edits are wrong, as in the run's demonstrations.
SCRIPTED = "learn.demonstrations={episodes=%d,right_edit=0.8,untested_finish=0.0,give_up=0.0,invalid_call=0.08}"
LARGER = (
    "policy.d_model=192",
    "policy.num_layers=6",
    "policy.num_heads=6",
    "policy.num_kv_heads=6",
    "policy.d_ff=528",
    'learn.pretrain.products="bfloat16"',
    'learn.sft.products="bfloat16"',
)
NO_RL = ("rl.steps=0", "rl.rounds=1", "learn.solved.after_rl=false", "evaluate.baselines=false")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/bench-laptop"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-ceiling"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=3600, help="scripted repairs")
    parser.add_argument("--recipe", choices=("laptop", "evening"), default="laptop", help="of the runs")
    parser.add_argument("--larger", action="store_true", help="also with 2.9 million parameters")
    args = parser.parse_args()
    detail: dict[str, Any] = {}
    for larger in (False, True) if args.larger else (False,):
        for seed in args.seeds:
            name = f"seed{seed}-larger" if larger else f"seed{seed}"
            base = RunDirectory((args.base / f"seed{seed}").absolute())
            run = RunDirectory((args.work / name).absolute())
            if run.stage_result(AFTER) is None:
                prepare(base, run, args.episodes, larger)
                run_recipe(run.root, run.root)
            row = compare(base, run)
            if larger:
                del row["found_share"]  # the run's result is of another policy
            detail[f"seed {seed}, larger" if larger else f"seed {seed}"] = row
            write_result("ceiling" if args.recipe == "laptop" else f"ceiling_{args.recipe}", figures(detail), detail)


def figures(detail: dict[str, Any]) -> dict[str, float]:
    """Return means over the seeds."""

    def mean(rows: list[dict[str, Any]], name: str) -> float:
        return sum(row[name]["mean"] for row in rows) / len(rows)

    rows = [row for name, row in detail.items() if not name.endswith("larger")]
    larger = [row for name, row in detail.items() if name.endswith("larger")]
    return {
        "seeds": len(rows),
        **{f"{name}_mean": mean(rows, name) for name in ("start", "rejection", "result", "ceiling")},
        "found_share": sum(row["found_share"] for row in rows) / len(rows),
        **({"ceiling_larger_mean": mean(larger, "ceiling")} if larger else {}),
    }


def prepare(base: RunDirectory, run: RunDirectory, episodes: int, larger: bool) -> None:
    """Copy ``base`` as it was after pretraining, or before if the policy is ``larger``; its demonstrations are its own
    plus scripted ones of RL's tasks."""
    branch(base.root, run.root, [SCRIPTED % episodes, *NO_RL, *(LARGER if larger else ())])
    recipe = load_recipe(run.recipe)
    if larger:
        shutil.rmtree(run.policy("pretrain"))
        (run.root / "stages" / "pretrain.json").unlink()
    folders = [task_folder(run, recipe.tasks.family, split) for split in ("train", "sft")]
    shutil.rmtree(folders[1])
    shutil.copytree(*folders, symlinks=True)
    for name in ("demos", "sft"):
        (run.root / "stages" / f"{name}.json").unlink()
    shutil.rmtree(run.demonstrations)
    run.demonstrations.mkdir()
    demonstrate(recipe, run)
    for verified in (True, False):
        path = run.examples(verified=verified)
        save_examples(path, [*load_examples(base.examples(verified=True)), *load_examples(path)])
    run.finish_stage("demos", run.read_result_of("demos"))


def compare(base: RunDirectory, run: RunDirectory) -> dict[str, Any]:
    """Return the held-out rates of the policies of ``base`` and ``run``. That of ``run`` is evaluated twice; the first
    evaluation counts."""
    found = learned(base)
    store = TrajectoryStore(run.trajectories)
    ceiling, again = evaluation(store, BEFORE), evaluation(store, AFTER)
    store.close()
    assert ceiling is not None and again is not None
    arms: dict[str, Evaluation] = {
        "start": found.arms[BEFORE],
        "rejection": found.arms[REJECTION],
        "result": found.arms[AFTER],
    }
    gained, missing = (
        found.arms[AFTER].pass1.mean - found.arms[BEFORE].pass1.mean,
        ceiling.pass1.mean - found.arms[BEFORE].pass1.mean,
    )
    every = {**arms, "ceiling": ceiling, "ceiling_again": again}
    return {
        **{name: interval(arm.pass1) for name, arm in every.items()},
        **{f"{name}_best{arm.samples}": interval(arm.best) for name, arm in every.items()},
        **{f"ceiling_over_{name}": interval(gains(arm, ceiling)[0]) for name, arm in arms.items()},
        "found_share": gained / missing,
        "scripted": run.read_result_of("demos"),
    }


if __name__ == "__main__":
    main()
