"""What each part of RL does: whole RL stages that differ in one setting, from the same SFT policies.

``python benchmarks/ablations.py --base runs/bench-laptop --arms grpo effort``. ``--base`` has finished runs of the
laptop recipe, ``seed0``, ``seed1`` and so on (``benchmarks/laptop.py`` makes them). Every arm and the control are RL
stages of ``--steps`` steps from the SFT policy of each, evaluated on the same held-out tasks, each at its best
temperature on the development tasks. An effect is the mean over tasks of the difference to the control, over all seeds;
the interval resamples tasks. Finished runs under ``--work`` are not run again, interrupted ones are continued, and what
is there is written after every run. Arms that were run before stay in the result.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from async_rl import branch
from recipe_runs import interval, run_recipe, stage_minutes
from result import RESULTS, write_result

from woodshed.evaluate.arms import AFTER
from woodshed.evaluate.statistics import Estimate, bootstrap
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.view.summary import EFFORT, Evaluation, evaluation

CONTROL = "control"
ARMS: Mapping[str, tuple[str, ...]] = {
    CONTROL: (),
    "grpo": ('rl.algorithm="grpo"',),
    "grpo_without_std": ('rl.algorithm="grpo"', "rl.algorithm_options={std=false}"),
    "leave_one_out": ('rl.algorithm="leave_one_out"',),
    "gspo": ('rl.algorithm="gspo"',),
    "raft": ('rl.algorithm="raft"', "train.optimizer.lr=2e-4"),
    "kl": ("rl.kl_beta=0.01",),
    "dynamic_sampling": ("rl.dynamic_sampling.enabled=true",),
    "variance_order": ('rl.curriculum.order="variance"',),
    "growth": ("rl.growth.make=2",),
    "effort": ("rl.rewards={invalid_call=0.05,effort=0.1}",),
    "hints": ("rl.hints.weight=0.1",),
    "forks": ('rl.algorithm="tree"', "rl.group_size=4", "rl.forks.count=2"),
    "sync": ('rl.mode="sync"', "rl.max_staleness=0"),
    "broken_calls_free": ("rl.rewards={}",),
}
"""Settings of each arm beyond those of the laptop recipe."""


@dataclass(frozen=True)
class Arm:
    """One run: its held-out evaluation, and minutes of its RL stage."""

    evaluation: Evaluation
    minutes: float

    def tokens_per_solved(self) -> float:
        return self.evaluation.effort["sampled_tokens"] / max(self.evaluation.pass1.mean, 1e-9)

    def detail(self) -> dict[str, Any]:
        e = self.evaluation
        return {
            "pass1": interval(e.pass1),
            f"best{e.samples}": interval(e.best),
            "first_attempts": e.first_attempts,
            "later_attempts": e.later_attempts,
            "submitted": e.submitted,
            "effort": e.effort,
            "tokens_per_solved": self.tokens_per_solved(),
            "statuses": e.statuses,
            "rl_minutes": self.minutes,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/bench-laptop"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-ablations"))
    parser.add_argument("--arms", nargs="+", choices=[name for name in ARMS if name != CONTROL], required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS / "ablations.json")
    args = parser.parse_args()
    found: dict[str, dict[int, Arm]] = {}
    for seed in args.seeds:  # all arms of a seed before the next: what is compared has run side by side
        for name in (CONTROL, *args.arms):
            arm = played(args.base / f"seed{seed}", args.work / f"{name}-{seed}", ARMS[name], args.steps)
            found.setdefault(name, {})[seed] = arm
            print(name, seed, arm.evaluation.pass1, flush=True)
            report(found, args.steps, args.out)


def played(base: Path, out: Path, settings: Sequence[str], steps: int) -> Arm:
    """Run the RL stage of one arm and its evaluation, unless it has been."""
    run = RunDirectory(out.absolute())
    if run.stage_result(AFTER) is None:
        if not run.recipe.exists():
            branch(base, out, [f"rl.steps={steps}", "evaluate.baselines=false", *settings])
            _keep_before(RunDirectory(base.absolute()), run)
        run_recipe(out, out)
        shutil.rmtree(run.root / "checkpoints", ignore_errors=True)
    store = TrajectoryStore(run.trajectories)
    try:
        after = evaluation(store, AFTER)
    finally:
        store.close()
    assert after is not None
    return Arm(after, stage_minutes(run)["rl"])


def effect(arm: Mapping[int, Arm], control: Mapping[int, Arm], best: bool = False) -> Estimate:
    """Mean over seeds and tasks of arm minus control in pass@1 (or best-of-k), resampling tasks."""
    by_task: dict[str, list[float]] = {}
    for seed in sorted(set(arm) & set(control)):
        a, b = (_by_task(each[seed].evaluation, best) for each in (arm, control))
        for task in set(a) & set(b):
            by_task.setdefault(task, []).append(a[task] - b[task])
    return bootstrap([float(np.mean(by_task[task])) for task in sorted(by_task)])


def report(found: Mapping[str, Mapping[int, Arm]], steps: int, out: Path) -> None:
    """Write the result; arms of an earlier one with as many steps are kept."""
    earlier = json.loads(out.read_text()) if out.exists() else {"figures": {}, "detail": {"steps": steps}}
    if earlier["detail"]["steps"] != steps:
        raise SystemExit(f"{out} has arms of {earlier['detail']['steps']} steps; give --out or move it away")
    figures, detail = dict(earlier["figures"]), dict(earlier["detail"])
    for name, arm in found.items():
        detail[name] = {"settings": ARMS[name], **{f"seed {seed}": each.detail() for seed, each in arm.items()}}
        if name == CONTROL:
            continue
        control = {seed: found[CONTROL][seed] for seed in arm}
        gain, best = effect(arm, control), effect(arm, control, best=True)
        figures |= {
            f"{name}_effect": gain.mean,
            f"{name}_ci95_low": gain.low,
            f"{name}_ci95_high": gain.high,
            f"{name}_seeds": len(arm),
            f"{name}_best_effect": best.mean,
            f"{name}_tokens_per_solved_ratio": _ratio(arm, control),
        }
        effects = {
            key: float(np.mean([arm[s].evaluation.effort[key] - control[s].evaluation.effort[key] for s in arm]))
            for key in EFFORT
        }
        detail[name]["effort_effects"] = effects
        detail[name]["effect_by_seed"] = {str(s): effect({s: arm[s]}, control).mean for s in arm}
    write_result("ablations", figures, detail, out)


def _ratio(arm: Mapping[int, Arm], control: Mapping[int, Arm]) -> float:
    return float(np.mean([arm[seed].tokens_per_solved() / control[seed].tokens_per_solved() for seed in arm]))


def _by_task(found: Evaluation, best: bool) -> dict[str, float]:
    return dict(zip(found.tasks, found.best_by_task if best else found.pass1_by_task, strict=True))


def _keep_before(base: RunDirectory, run: RunDirectory) -> None:
    """Take over the evaluation before RL, which is the same for every arm."""
    stage = base.root / "stages" / "before.json"
    source, target = TrajectoryStore(base.trajectories), TrajectoryStore(run.trajectories)
    try:
        for row in source.rows("source = 'eval' AND group_id LIKE 'before%'"):
            trajectory = source.get(row["id"])
            assert trajectory is not None
            target.add(trajectory)
    finally:
        source.close()
        target.close()
    shutil.copy(stage, run.root / "stages" / stage.name)


if __name__ == "__main__":
    main()
