"""Whole runs of a recipe through the command line, and their figures, for the benchmarks that compare runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.view.summary import Evaluation, evaluation, gains


def run_recipe(recipe: Path, out: Path, **overrides: object) -> RunDirectory:
    """``woodshed run`` to its end; a run that was interrupted is continued. Ends the program where the run fails."""
    sets = [f"--set={key}={json.dumps(value)}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "woodshed.cli", "run", str(recipe), "--out", str(out), *sets]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"{' '.join(command)} failed; see {out}/logs")
    return RunDirectory(out.absolute())


@dataclass
class Learned:
    """Held-out evaluations of one run."""

    before: Evaluation
    after: Evaluation

    def figures(self) -> dict[str, Any]:
        gain, best = gains(self.before, self.after)
        return {
            "pass1_before": interval(self.before.pass1),
            "pass1_after": interval(self.after.pass1),
            f"best{self.before.samples}_before": interval(self.before.best),
            f"best{self.after.samples}_after": interval(self.after.best),
            "gain": interval(gain),
            "best_change": interval(best),
            "effort_before": self.before.effort,
            "effort_after": self.after.effort,
            "statuses_before": self.before.statuses,
            "statuses_after": self.after.statuses,
        }


def learned(run: RunDirectory, suffix: str = "") -> Learned | None:
    """The evaluations ``before``/``after`` + ``suffix``; None where the run has none."""
    store = TrajectoryStore(run.trajectories)
    try:
        before, after = evaluation(store, f"before{suffix}"), evaluation(store, f"after{suffix}")
        return Learned(before, after) if before and after else None
    finally:
        store.close()


def stage_minutes(run: RunDirectory) -> dict[str, float]:
    files = sorted((run.root / "stages").glob("*.json"))
    return {file.stem: json.loads(file.read_text())["seconds"] / 60 for file in files}


def interval(estimate: Any) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
