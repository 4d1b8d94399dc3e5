"""Whole runs of a recipe through the command line, and their figures, for the benchmarks that compare runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.evaluate.arms import ADOPT, AFTER, ALONE, BEFORE, arms_of, best_baseline, stage_of, title_of, titles
from woodshed.evaluate.statistics import Estimate
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.view.summary import Evaluation, evaluation, gains


def run_recipe(recipe: Path, out: Path, **overrides: object) -> RunDirectory:
    """Run ``woodshed run`` to its end; an interrupted run is continued. Exits if the run fails."""
    sets = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "woodshed.cli", "run", str(recipe), "--out", str(out), *sets]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{' '.join(command)} failed; see {out}/logs")
    return RunDirectory(out.absolute())


@dataclass(frozen=True)
class Learned:
    """The held-out evaluations of one run: of RL's result and of its baselines."""

    arms: dict[str, Evaluation]
    titles: dict[str, str]
    temperatures: dict[str, float]
    development: dict[str, dict[str, float]]
    """pass@1 on the development tasks by arm and temperature, from which each arm's temperature was chosen."""

    @property
    def best(self) -> str:
        return best_baseline({name: arm.pass1.mean for name, arm in self.arms.items()})

    def gains(self) -> tuple[Estimate, Estimate]:
        """Return the gains of RL over the best baseline in pass@1 and best-of-k, paired by task."""
        return gains(self.arms[self.best], self.arms[AFTER])

    def submitted_change(self) -> float:
        return self.arms[AFTER].submitted - self.arms[self.best].submitted

    def detail(self) -> dict[str, Any]:
        gain, best_gain = self.gains()
        shown = {
            self.titles[name]: {
                "temperature": self.temperatures[name],
                "development": self.development[name],
                "pass1": interval(arm.pass1),
                f"best{arm.samples}": interval(arm.best),
                "first_attempts": arm.first_attempts,
                "later_attempts": arm.later_attempts,
                "later_if_fresh": arm.later_if_fresh,
                "submitted": arm.submitted,
                "effort": arm.effort,
                "statuses": arm.statuses,
            }
            for name, arm in self.arms.items()
        }
        over = {"best_baseline": self.titles[self.best], "gain": interval(gain), "best_change": interval(best_gain)}
        others = {
            self.titles[name]: interval(gains(arm, self.arms[AFTER])[0])
            for name, arm in self.arms.items()
            if name != AFTER
        }
        return {"policies": shown, **over, "gain_over_each": others}


def learned(run: RunDirectory) -> Learned:
    """Return the held-out evaluations of a run. Exits if it has no evaluation before and after RL."""
    recipe = load_recipe(run.recipe)
    store = TrajectoryStore(run.trajectories)
    try:
        over = (path.stem for path in (run.root / "stages").glob("*.json"))
        arms = {name: found for name in arms_of(over) if (found := evaluation(store, name))}
    finally:
        store.close()
    if not {BEFORE, AFTER} <= set(arms):
        raise SystemExit(f"{run.root} has no evaluation before and after RL; the run has not come that far")
    results = {name: run.stage_result(stage_of(name)) or {} for name in arms}
    temperatures = {name: result["temperature"] for name, result in results.items()}
    development = {name: result["dev_pass1"] for name, result in results.items()}
    named = titles(recipe.learn.sft.verified, recipe.learn.solved.after_rl, run.stage_result(ADOPT) is not None)
    return Learned(arms, {name: title_of(name, named) for name in arms}, temperatures, development)


def figures_of(seeds: Sequence[Learned]) -> dict[str, float]:
    """Return the headline figures of a learning result over its seeds, without those of baselines that were not run."""
    found: dict[str, float] = {
        "seeds": len(seeds),
        "heldout_tasks": min(len(each.arms[BEFORE].tasks) for each in seeds),
    }
    names = {"SFT, all": "sft", "SFT, verified": "verified_sft", "SFT, rejection": "rejection_sft"}
    for title, name in names.items():
        rates = [arm.pass1.mean for each in seeds for key, arm in each.arms.items() if each.titles[key] == title]
        if rates:
            found[f"{name}_best_mean"] = sum(rates) / len(rates)
    for arm, name in ((ALONE, "rl_alone"), (AFTER, "rl")):
        rates = [each.arms[arm].pass1.mean for each in seeds if arm in each.arms]
        if rates:
            found[f"{name}_best_mean"] = sum(rates) / len(rates)
    over = [each.gains() for each in seeds]
    return found | {
        "gain_over_best_mean": sum(gain.mean for gain, _ in over) / len(over),
        "gain_over_best_min": min(gain.mean for gain, _ in over),
        "gain_over_best_ci95_low_min": min(gain.low for gain, _ in over),
        "best8_change_min": min(best.mean for _, best in over),
        "submitted_share_change_min": min(each.submitted_change() for each in seeds),
        "later_attempts_before": sum(each.arms[BEFORE].later_attempts for each in seeds) / len(seeds),
        "later_attempts_after": sum(each.arms[AFTER].later_attempts for each in seeds) / len(seeds),
        "later_if_fresh_after": sum(each.arms[AFTER].later_if_fresh for each in seeds) / len(seeds),
    }


def stage_minutes(run: RunDirectory) -> dict[str, float]:
    files = sorted((run.root / "stages").glob("*.json"))
    return {file.stem: json.loads(file.read_text())["seconds"] / 60 for file in files}


def interval(estimate: Any) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
