"""Whole runs of a recipe through the command line, and their figures, for the benchmarks that compare runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    samples = min(arm.samples for arm in arms.values())  # figures of one k can be compared
    arms = {name: arm.best_of(samples) for name, arm in arms.items()}
    results = {name: run.stage_result(stage_of(name)) or {} for name in arms}
    temperatures = {name: result["temperature"] for name, result in results.items()}
    development = {name: result["dev_pass1"] for name, result in results.items()}
    named = titles(recipe.learn.sft.verified, recipe.learn.solved.after_rl, run.stage_result(ADOPT) is not None)
    return Learned(arms, {name: title_of(name, named) for name in arms}, temperatures, development)


def figures_of(run: Learned) -> dict[str, float | None]:
    """Return the headline figures of one run, without those of baselines that were not run. ``over_seeds`` joins those
    of several runs."""
    found: dict[str, float | None] = {"heldout_tasks": len(run.arms[BEFORE].tasks)}
    rates = {run.titles[name]: arm.pass1.mean for name, arm in run.arms.items()}
    names = {"SFT, all": "sft", "SFT, verified": "verified_sft", "SFT, rejection": "rejection_sft"}
    found |= {f"{name}_best_mean": rates[title] for title, name in names.items() if title in rates}
    for arm, name in ((ALONE, "rl_alone"), (AFTER, "rl")):
        if arm in run.arms:
            found[f"{name}_best_mean"] = run.arms[arm].pass1.mean
    gain, best = run.gains()
    before, after = run.arms[BEFORE], run.arms[AFTER]
    return found | {
        "gain_over_best_mean": gain.mean,
        "gain_over_best_min": gain.mean,
        "gain_over_best_ci95_low_min": gain.low,
        f"best{after.samples}_change_min": best.mean,
        f"best{after.samples}_gain_ci95_low_min": best.low,
        "submitted_share_change_min": run.submitted_change(),
        "later_attempts_before": before.later_attempts,
        "later_attempts_after": after.later_attempts,
        "later_if_fresh_after": after.later_if_fresh,
    }


def earlier_seeds(path: Path) -> dict[str, Any]:
    """Return what the result ``path`` says of each seed; nothing if there is no result yet."""
    return json.loads(path.read_text())["detail"] if path.exists() else {}


def over_seeds(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the figures of several seeds, given those of each: the mean or maximum of what is called so, the mean of
    shares of later attempts, and the minimum of the rest. A figure that is unknown for one seed, or that one seed does
    not have (best-of-k of another k), is unknown for all."""
    found: dict[str, float | None] = {"seeds": len(rows)}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            found[name] = None
        elif name.endswith("_mean") or name.startswith("later_"):
            found[name] = sum(known) / len(known)
        else:
            found[name] = max(known) if name.endswith("_max") else min(known)
    return found


def stage_minutes(run: RunDirectory) -> dict[str, float]:
    files = sorted((run.root / "stages").glob("*.json"))
    return {file.stem: json.loads(file.read_text())["seconds"] / 60 for file in files}


def interval(estimate: Any) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
