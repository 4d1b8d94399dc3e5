"""Kill (kill -9) every process of a run with two engines again and again, and check that nothing is lost or counted
twice.

    python benchmarks/chaos.py [--kills 100] [--every 3] [--seed N] [--out benchmarks/results/chaos.json]

The smoke recipe runs up to RL once. Then engines, gateway, publisher (the trainer), follower (an engine that has just
been given new weights), rollouts, the fork server of the boxes and the run itself are killed at random moments of RL,
``--kills`` times in all; if a run finishes before that, another one starts. After every run its files are checked:
trajectories lost or stored twice, tokens without version or log-probability, log-probabilities that are not those of
the weights of their version, prompts dispatched twice, and whether the final weights are bitwise those of the chain."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from result import write_result
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from chaos.prey import Prey
from chaos.records import CHECKS, episodes, infra_errors, lost_or_doubled, resumed
from real_runs import SMOKE, begin
from waiting import wait_until

from woodshed.weights.manifest import versions

WEIGHTS = {"engine": 6, "server": 4, "trainer": 3, "follower": 3, "rollouts": 2, "fork_server": 1, "run": 1}
"""Relative frequency with which each is killed."""


def head(root: Path) -> int:
    return max(versions(root / "weights"), default=-1)


def prepare(scratch: Path, steps: int, attempts: int) -> Path:
    """Prepare a run in which only RL and the stages after it are left to do; return its folder."""
    root = scratch / "base"
    sets = {
        "rl.steps": steps,
        "tasks.synthetic.train": 2 * steps + 8,
        "engine.replicas": 2,
        "rl.attempts": attempts,
    }
    flags = [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
    process = begin(scratch, "run", SMOKE, "--out", root, *flags, output=scratch / "output")
    try:
        wait_until(lambda: (root / "stages" / "before.json").exists(), "the stages before RL", process)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    return root


class Hunt:
    """One run whose processes are killed until it is finished."""

    def __init__(self, root: Path, scratch: Path, rng: random.Random, every: float) -> None:
        self.root, self.scratch, self.rng, self.every = root, scratch, rng, every
        self.prey = Prey(root)
        self.killed: Counter[str] = Counter()
        self.continued = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = begin(self.scratch, "run", self.root, output=self.scratch / "output")
        self.prey.follow(process.pid)
        return process

    def in_rl(self) -> bool:
        return not (self.root / "stages" / "rl.json").exists()

    def alive(self) -> bool:
        """Return whether the run is unfinished. A run that has failed is restarted, as a person would do."""
        if self.process.poll() is None:
            return True
        if self.process.returncode == 0:
            return False
        self.continued += 1
        self.process = self._start()
        return True

    def kill(self) -> str | None:
        """Wait a random time, then kill something; return its name, or None if RL was over before."""
        victim = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        until, version = time.monotonic() + self.rng.uniform(0, 2 * self.every), head(self.root)
        while self.in_rl() and self.alive():
            now = time.monotonic()
            # Kill a follower just after new weights were published; if none come for 10 s, kill any engine.
            ready = now > until + 10 or head(self.root) > version if victim == "follower" else now > until
            if ready and self._kill(victim):
                self.killed[victim] += 1
                return victim
            time.sleep(0.02)
        return None

    def _kill(self, victim: str) -> bool:
        if victim != "run":
            return self.prey.kill_one("engine" if victim == "follower" else victim)
        self.prey.kill(self.process.pid)
        self.process.wait()
        wait_until(lambda: not self.prey.alive(), "the children to die with the run")
        self.process = self._start()
        return True

    def finish(self) -> None:
        while self.alive():
            self.prey.look()
            time.sleep(0.2)
        wait_until(lambda: not self.prey.alive(), "every process of the run to be gone")


def count(root: Path) -> dict[str, Any]:
    """Return the lost or doubled records, failed checks and other counts of a finished run's files."""
    broken = {}
    for check in CHECKS:
        try:
            check(root)
        except AssertionError as error:
            broken[check.__name__] = str(error)[:500] or "failed"
    counts = {"infra_errors": len(infra_errors(root)), "resumed": resumed(root)}
    return {"lost_or_doubled": lost_or_doubled(root), "broken": broken, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--every", type=float, default=3.0, help="mean seconds between two (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="RL steps of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rng, runs, killed = random.Random(given.seed), [], Counter[str]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="woodshed-chaos-") as place, Progress(*columns) as progress:
        scratch = Path(place)
        bar = progress.add_task("stages before RL", total=given.kills)
        base = prepare(scratch, given.steps, attempts=8)
        while killed.total() < given.kills:
            root = scratch / f"run-{len(runs)}"
            shutil.copytree(base, root)
            hunt = Hunt(root, scratch, rng, given.every)
            try:
                while killed.total() + hunt.killed.total() < given.kills and (victim := hunt.kill()):
                    text = f"killed {victim}; version {head(root)}, {episodes(root)} episodes"
                    progress.update(bar, advance=1, description=text)
                progress.update(bar, description="finishing a run")
                hunt.finish()
            finally:
                hunt.process.kill()
                hunt.process.wait()
            killed += hunt.killed
            found = count(root)
            runs.append({"killed": dict(hunt.killed), "continued": hunt.continued, "episodes": episodes(root), **found})
            shutil.rmtree(root)
    lost = sum(run["lost_or_doubled"] for run in runs)
    broken = sum(len(run["broken"]) for run in runs)
    figures: dict[str, float | None] = {
        "kills": killed.total(),
        "lost_or_doubled": lost,
        "broken_invariants": broken,
        "episodes": sum(run["episodes"] for run in runs),
        "infra_errors": sum(run["infra_errors"] for run in runs),
        "resumed": sum(run["resumed"] for run in runs),
    }
    write_result("chaos", figures, {"seed": given.seed, "killed": dict(killed), "runs": runs}, given.out)
    if lost or broken:
        raise SystemExit("something was lost; see the detail")


if __name__ == "__main__":
    main()
