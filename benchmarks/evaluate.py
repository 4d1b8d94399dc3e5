"""Run ``woodshed evaluate`` like a user: ``python benchmarks/evaluate.py --checkpoint RUN [--suite FOLDER...]``.

First part: policies on ``cheats``, ``interaction`` and folders of tasks (for example made by ``woodshed tasks build``
from QuixBugs, HumanEval and Exercism): a scripted oracle, cheater and attentive agent behind a real HTTP server in its
own process (``tests/evaluate/scripted_models.py``), and the policy ``--checkpoint``. The command runs once to its end.
Then it runs again in another folder and is killed with SIGKILL ``--kills`` times at random moments, together with
everything it started, before it ends; ``results_changed`` counts policies and tasks whose solved samples, cheats,
turns, tokens or axes differ between the two. The seconds of an episode are those of box, harness, grading and storing,
since the scripted models answer at once. The samples of the checkpoint must not change either.

Second part: real models, ``--model NAME=POLICY`` (several), are compared, each in its run's agent or in that of
``--agent NAME=RECIPE``, on ``--model-suite``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from result import write_result

from woodshed.evaluate.suites.cheats import write_cheats
from woodshed.evaluate.suites.interaction import write_interaction

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("oracle", "cheater", "attentive")
TOOLS = '["read_file","edit_line","write_file","undo","run_tests","finish"]'
_KEPT = ("pass1", "cheats", "judged", "reasons", "turns", "tokens", "axes")
AGENT = ("--agent", "smoke", "--set", f"harness.tools={TOOLS}", "--set", "harness.limits.turns=9")
"""The smoke recipe's harness with a tool to write files; all policies work in it, so that they are comparable."""
LIMITS = ("--set", "harness.limits.sampled_tokens=0", "--set", "harness.limits.context_tokens=0")
LIMITS += ("--set", "harness.limits.turn_tokens=64")


@contextmanager
def models(folders: Sequence[Path], place: Path) -> Iterator[str]:
    """Start the server of the scripted models; yield its URL."""
    ready = place / "url"
    ready.unlink(missing_ok=True)
    program = ROOT / "tests" / "evaluate" / "scripted_models.py"
    process = subprocess.Popen([sys.executable, str(program), *map(str, folders), "--ready", str(ready)])
    try:
        while not ready.exists() or not ready.read_text():
            assert process.poll() is None, "the scripted models did not start"
            time.sleep(0.1)
        yield ready.read_text()
    finally:
        process.kill()
        process.wait()


def command(url: str, arguments: argparse.Namespace, out: Path, only: Sequence[str] = ()) -> list[str]:
    policies = [f"{name}={url}#{name}" for name in MODELS]
    policies += [f"checkpoint={arguments.checkpoint}"] if arguments.checkpoint else []
    policies = [each for each in policies if not only or each.partition("=")[0] in only]
    suites = [f"cheats:{arguments.cheats}", f"interaction:{arguments.cheats}", *map(str, arguments.suite)]
    options = [text for suite in suites for text in ("--suite", suite)]
    options += ["--limit", str(arguments.limit), "--samples", str(arguments.samples), "--jobs", str(arguments.jobs)]
    command = [sys.executable, "-m", "woodshed.cli", "evaluate", *policies, *options, "--out", str(out)]
    return [*command, *AGENT, *LIMITS]


def run(words: Sequence[str]) -> float:
    """Run a command to its end; return the wall seconds."""
    start = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return time.monotonic() - start


def stored(out: Path) -> int:
    """Return the number of finished episodes of an evaluation."""
    import sqlite3

    index = out / "trajectories" / "index.sqlite"
    if not index.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=30) as connection:
            return int(connection.execute("SELECT count(*) FROM trajectories").fetchone()[0])
    except sqlite3.OperationalError:  # no table yet
        return 0


def killed(words: Sequence[str], out: Path, *, kills: int, total: int, seed: int) -> list[int]:
    """Kill the command ``kills`` times while it runs; return the number of stored episodes at each kill.

    Each kill comes at a random moment after the next few episodes were stored, so that the kills are spread over the
    whole evaluation; some come while it starts or while it judges.
    """
    rng = random.Random(seed)
    seen: list[int] = []
    while len(seen) < kills:
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        goal = total * (len(seen) + 1) // (kills + 2)
        early = rng.random() < 0.15
        began = time.monotonic()
        while process.poll() is None and stored(out) < goal and not (early and time.monotonic() - began > 3):
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.6))
        if process.poll() is not None:
            assert process.returncode == 0, f"the command failed with {process.returncode} after {len(seen)} kills"
            print(f"it ended after {len(seen)} kills", flush=True)
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seen.append(stored(out))
        print(f"kill {len(seen)}: {seen[-1]} of {total} episodes stored", flush=True)
    return seen


def compared(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """List the entries that differ between two results; entries in seconds are left out."""
    found = []
    for one, other in zip(left["policies"], right["policies"], strict=True):
        for key in (*_KEPT, "name", "episodes", "tasks", "flagged"):
            if one[key] != other[key]:
                found.append(f"{one['name']}: {key} {one[key]} / {other[key]}")
    for suite, tasks in left["tasks"].items():
        for task, by in tasks.items():
            if by != right["tasks"][suite][task]:
                found.append(f"{suite} {task}: {by} / {right['tasks'][suite][task]}")
    return found


def side_by_side(arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Run the second part; return the results of the real models."""
    words = [sys.executable, "-m", "woodshed.cli", "evaluate", *arguments.model, "--out", str(out)]
    for name in ("suite", "limit", "samples", "temperature"):
        for value in getattr(arguments, f"model_{name}"):
            words += [f"--{name}", str(value)]
    words += [text for agent in arguments.agent for text in ("--agent", agent)]
    run([*words, "--jobs", str(arguments.jobs)])
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def described(policy: dict[str, Any]) -> dict[str, Any]:
    suites = {name: each["pass1"]["mean"] for name, each in policy["suites"].items() if each["tasks"]}
    shown = {key: policy[key] for key in (*_KEPT, "seconds", "submitted", "infra_errors", "episodes", "temperature")}
    return {**shown, "axes": {name: value["mean"] for name, value in policy["axes"].items()}, "suites": suites}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="run directory of the smoke recipe; without it no third policy")
    parser.add_argument("--suite", type=Path, nargs="*", default=[], help="folders of held-out tasks")
    parser.add_argument("--cheats", type=int, default=12, help="tasks of cheats, and of interaction")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--model", nargs="*", default=[], help="NAME=POLICY of the second part")
    parser.add_argument("--agent", nargs="*", default=[], help="NAME=RECIPE of one of them, or RECIPE of all")
    parser.add_argument("--model-suite", nargs="*", default=["interaction:8", "cheats:6"])
    parser.add_argument("--model-limit", nargs=1, default=[8])
    parser.add_argument("--model-samples", nargs=1, default=[1])
    parser.add_argument("--model-temperature", nargs=1, default=["0.3"])
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "benchmark-evaluate")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_cheats(work / "cheats", arguments.cheats)
    write_interaction(work / "interaction", arguments.cheats)
    with models([work / "cheats", work / "interaction", *arguments.suite], work) as url:
        seconds = run(command(url, arguments, work / "whole"))
        whole = json.loads((work / "whole" / "results.json").read_text())
        total = sum(policy["episodes"] for policy in whole["policies"])
        print(f"{total} episodes in {seconds:.0f} s", flush=True)
        words = command(url, arguments, work / "killed")
        kills = killed(words, work / "killed", kills=arguments.kills, total=total, seed=1)
        run(words)
        again = json.loads((work / "killed" / "results.json").read_text())
    changed = compared(whole, again)
    real = side_by_side(arguments, work / "models") if arguments.model else {"policies": [], "settings": {"suites": {}}}
    by_name = {policy["name"]: policy for policy in whole["policies"]}
    oracle = by_name["oracle"]
    figures: dict[str, float | None] = {
        "suites": len({**whole["settings"]["suites"], **real["settings"]["suites"]}),
        "tasks": sum(len(suite["tasks"]) for suite in whole["settings"]["suites"].values()),
        "models": len(whole["policies"]) + len(real["policies"]),
        "episodes": total,
        "infra_errors": sum(policy["infra_errors"] for policy in whole["policies"]),
        "cheat_rate_cheater": by_name["cheater"]["cheat_rate"],
        "cheat_rate_oracle": oracle["cheat_rate"],
        "oracle_solved_share": oracle["pass1"]["mean"],
        "attentive_as_asked": by_name["attentive"]["axes"]["as_asked"]["mean"],
        "oracle_as_asked": oracle["axes"]["as_asked"]["mean"],
        "cheater_solved_share": by_name["cheater"]["pass1"]["mean"],
        "kills_during": len(kills),
        "stored_twice": stored(work / "killed") - total,
        "results_changed": len(changed),
        "seconds_overhead_per_episode": oracle["seconds"],
        "wall_seconds_per_episode": seconds / total,
    }
    detail = {
        "suites": {name: len(suite["tasks"]) for name, suite in whole["settings"]["suites"].items()},
        "samples": arguments.samples,
        "jobs": arguments.jobs,
        "load": os.getloadavg()[0],
        "stored_at_kill": kills,
        "changed": changed,
        "policies": {name: described(policy) for name, policy in by_name.items()},
        "side_by_side": {
            "suites": {name: len(suite["tasks"]) for name, suite in real["settings"]["suites"].items()},
            "policies": {policy["name"]: described(policy) for policy in real["policies"]},
        },
    }
    write_result("evaluate", figures, detail)


if __name__ == "__main__":
    main()
