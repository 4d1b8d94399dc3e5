"""Measure the effect of single RL settings: RL stages from the same SFT policies, one with the setting, one without.

``python benchmarks/ablations.py --base runs/bench-laptop --arms grpo effort``. ``--base`` has finished runs of the
laptop recipe, ``seed0``, ``seed1`` and so on (``benchmarks/laptop.py`` makes them). Every arm and the control are RL
stages of ``--steps`` steps, evaluated on the same held-out tasks, each at its best temperature on the development
tasks. An effect is the mean over tasks of the difference to the control, over all seeds. Its interval covers other
tasks and other runs: it adds the variance of the mean over tasks to that of runs of one recipe and seed, which is
measured by repeating the control (the arms ``again`` and ``again_2``; without them the interval is over tasks alone).

The result covers all arms under ``--work`` and ``--also``, each against the control of its own folder, and is written
after every run (with ``--add``, at the end). Finished runs there are not run again, interrupted ones are continued.
Some arms need a base of their own:

- ``effort``: one with ``learn.sft.verified = false`` (after verified demonstrations a policy never gives up, so it
  cannot learn to stop earlier).
- ``effort_waste``: one whose every episode has something to save (``learn.demonstrations.wrong_file = 0.8``).
- ``habit_free``, ``habit_dropped``: one that breaks calls in every seed (``learn.demonstrations.foreign_tool = 0.2``).
- ``summaries_masked``: a policy that summarises (``harness.summary``, and a context too small for its tasks).
- ``summaries_masked_tight``: one that depends on its summaries (three calls and one summary after the file was read, so
  that a policy that must read it again cannot edit).
- hints: a policy with a habit that they can correct (``learn.demonstrations.foreign_tool``), that learned to read them
  (``hinted``) and pays nothing for it (``rl.rewards={}``); ``broken_calls_priced`` is the price beside them.
- ``growth``: a policy that can repair two bugs, which the tasks that it makes have, and held-out tasks with two
  (``tasks.synthetic.two_bugs = 0.5``, and ``learn.demonstrations.right_edit = 0.6`` so that enough demonstrations do).
- ``declining_free``: one that sometimes does not edit at all (``learn.demonstrations.decline``).
- ``replay_off``: a mixture of experts.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from async_rl import branch
from recipe_runs import interval, run_recipe, stage_minutes
from result import RESULTS, write_result

from woodshed.evaluate.arms import AFTER, BEFORE
from woodshed.evaluate.statistics import Estimate, bootstrap, t_quantile
from woodshed.recipe.load import load_recipe
from woodshed.record.jsonl import read_jsonl
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.stages.scripted import PLAN
from woodshed.view.summary import EFFORT, Evaluation, evaluation

CONTROL, AGAIN = "control", ("again", "again_2")
_HINTS = 'rl.hints={weight=0.2,role="tool",triggers=["unknown_tool"]}'
ARMS: Mapping[str, tuple[str, ...]] = {
    CONTROL: (),
    **dict.fromkeys(AGAIN, ()),
    "grpo": ('rl.algorithm="grpo"',),
    "grpo_without_std": ('rl.algorithm="grpo"', "rl.algorithm_options={std=false}"),
    "leave_one_out": ('rl.algorithm="leave_one_out"',),
    "gspo": ('rl.algorithm="gspo"',),
    "raft": ('rl.algorithm="raft"', "train.optimizer.lr=2e-4"),
    "kl": ("rl.kl_beta=0.01",),
    "dynamic_sampling": ("rl.dynamic_sampling.enabled=true",),
    "probes": ("rl.probes=4",),
    "variance_order": ('rl.curriculum.order="variance"',),
    "growth": ("rl.growth={make=6,easy=0.5}",),
    "effort": ("rl.rewards={invalid_call=0.05,effort=0.3}",),
    "effort_low": ("rl.rewards={invalid_call=0.05,effort=0.1}",),
    "effort_waste": ("rl.rewards={invalid_call=0.05,effort=0.3}",),
    "forks": ('rl.algorithm="tree"', "rl.group_size=4", "rl.forks.count=2"),
    "summaries_masked": ("rl.train_summaries=false",),
    "summaries_masked_tight": ("rl.train_summaries=false",),
    "sync": ('rl.mode="sync"', "rl.max_staleness=0"),
    "broken_calls_priced": ("rl.rewards={invalid_call=0.05}",),
    "broken_calls_free": ("rl.rewards={}",),
    "broken_calls_dropped": ("rl.rewards={}", 'rl.algorithm="benchmarks.dropping:DropBroken"'),
    "habit_free": ("rl.rewards={}",),
    "habit_dropped": ("rl.rewards={}", 'rl.algorithm="benchmarks.dropping:DropBroken"'),
    "declining_free": ('rl.rewards={invalid_call=0.05,"benchmarks.declining:failed_edit"=1}',),
    "hints": (_HINTS, "train.hint_kl.gate_high=5.0"),
    "hints_ungated": (_HINTS,),
    "hints_until": (_HINTS, "train.hint_kl.until_rejected=1.0"),
    "hints_frozen": (_HINTS, 'train.hint_kl.teacher="frozen"'),
    "solved": ("learn.solved.after_rl=true",),
    "solved_whole": ("learn.solved={after_rl=true,wasted_call_weight=1}",),
    "replay_off": ("train.replay_ratio=1.0",),
}
"""Settings of each arm beyond those of the laptop recipe. ``again`` and ``again_2`` repeat the control, to measure the
difference between runs of one recipe, since asynchronous runs cannot be repeated exactly. Other arms are compared with
the mean of all control runs."""

Arms = dict[str, dict[int, "Arm"]]
"""Finished runs by arm and seed."""


@dataclass(frozen=True)
class Arm:
    """One run: its held-out evaluation, minutes of its RL stage, by task the mean effort of an episode (``EFFORT``) and
    the pass rate before RL, statistics of its summaries before and after RL (``summaries``), and of its training, and
    the temperature of its evaluation, on which best-of-k depends. ``two_bugs``: the held-out tasks that have two."""

    evaluation: Evaluation
    minutes: float
    effort: Mapping[str, Mapping[str, float]]
    before: Mapping[str, float]
    summaries: Mapping[str, Mapping[str, float]]
    training: Mapping[str, Any]
    temperature: float
    two_bugs: frozenset[str] = frozenset()

    def tokens_per_solved(self) -> float | None:
        """Return the sampled tokens per episode divided by the pass rate; None if nothing was solved."""
        solved = self.evaluation.pass1.mean
        return self.evaluation.effort["sampled_tokens"] / solved if solved else None

    def _on_two_bugs(self) -> dict[str, float]:
        after = _by_task(self.evaluation, best=False)
        before, now = (float(np.mean([rates[task] for task in self.two_bugs])) for rates in (self.before, after))
        return {"tasks": len(self.two_bugs), "pass1_before": before, "pass1": now}

    def detail(self) -> dict[str, Any]:
        e = self.evaluation
        return {
            "temperature": self.temperature,
            "pass1": interval(e.pass1),
            f"best{e.samples}": interval(e.best),
            "first_attempts": e.first_attempts,
            "later_attempts": e.later_attempts,
            "submitted": e.submitted,
            "effort": e.effort,
            "tokens_per_solved": self.tokens_per_solved(),
            "statuses": e.statuses,
            "rl_minutes": self.minutes,
            "training": self.training,
            **({"summaries": self.summaries} if any(self.summaries.values()) else {}),
            **({"two_bugs": self._on_two_bugs()} if self.two_bugs else {}),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/bench-laptop"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-ablations"))
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="other --work folders to report too")
    parser.add_argument("--arms", nargs="+", choices=[name for name in ARMS if name != CONTROL], default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=RESULTS / "ablations.json")
    parser.add_argument("--add", action="store_true", help="keep what --out says of arms that are in no folder")
    args = parser.parse_args()
    for seed in args.seeds:  # all arms of a seed before the next, so that compared runs follow each other
        for name in (CONTROL, *args.arms) if args.arms else ():
            base, out = args.base / f"seed{seed}", args.work / f"{name}-{seed}"
            settings = (f"rl.steps={args.steps}", "evaluate.baselines=false", *ARMS[name])
            if play(base, out, settings) and not args.add:  # titles of controls change while arms come
                report([finished(work) for work in (args.work, *args.also)], args.steps, args.out)
    report([finished(work) for work in (args.work, *args.also)], args.steps, args.out, args.add)


def play(base: Path, out: Path, settings: Sequence[str]) -> bool:
    """Run the RL stage of one arm and its evaluation, unless it is finished; return True if it was run. Exits if
    ``out`` was run with other settings."""
    run = RunDirectory(out.absolute())
    if not run.recipe.exists():
        if out.exists():
            raise SystemExit(f"{out} has no recipe.toml, so it is no run; delete it, or give another --work")
        begun = out.with_name(f".{out.name}")  # a copy that was interrupted must not be taken for a run
        branch(base, begun, list(settings))
        _keep_before(RunDirectory(base.absolute()), RunDirectory(begun.absolute()))
        begun.rename(out)
    if load_recipe(run.recipe) != load_recipe(base / "recipe.toml", settings):
        raise SystemExit(f"{out} was run from another base or with other settings; delete it, or give another --work")
    if run.stage_result(AFTER) is not None:
        return False
    run_recipe(out, out)
    for path in run.root.glob("checkpoints*"):
        shutil.rmtree(path)
    return True


def finished(work: Path) -> Arms:
    """Return the finished runs under ``work``."""
    found: Arms = {}
    for name in ARMS:
        for place in sorted(work.glob(f"{name}-[0-9]*")):
            run = RunDirectory(place.absolute())
            result = run.stage_result(AFTER)
            if result is None:
                continue
            store = TrajectoryStore(run.trajectories)
            try:
                before, after = evaluation(store, BEFORE), evaluation(store, AFTER)
                efforts: dict[str, list[dict[str, float]]] = {}
                for row in store.rows(f"source = 'eval' AND group_id LIKE '{AFTER}:%'"):
                    efforts.setdefault(row["task"], []).append(row["effort"])
                said = {each: summaries(store, run, each) for each in (BEFORE, AFTER)}
                training = training_rollouts(store) | training_steps(run)
            finally:
                store.close()
            if before is not None and after is not None:
                effort = {
                    task: {key: float(np.mean([each[key] for each in episodes])) for key in EFFORT}
                    for task, episodes in efforts.items()
                }
                minutes = stage_minutes(run)["rl"]
                rates = _by_task(before, best=False)
                two = frozenset(task for task, kind in _kinds(run).items() if kind == "two bugs")
                arm = Arm(after, minutes, effort, rates, said, training, result["temperature"], two)
                found.setdefault(name, {})[int(place.name.rpartition("-")[2])] = arm
    return found


def _kinds(run: RunDirectory) -> dict[str, str]:
    path = run.root / "tasks" / "kinds.json"
    return json.loads(path.read_text()) if path.exists() else {}


def training_rollouts(store: TrajectoryStore) -> dict[str, Any]:
    """Return number and tokens of the training rollouts and, for each sixth of them in order of their start, the share
    that is solved and the share with an invalid call; further how many tasks were made during the run and how many of
    them were solved."""
    rows = store.rows("source = 'train'")
    grown = [row for row in rows if "-grown-" in row["task"]]
    sixths = [part for part in np.array_split(np.arange(len(rows)), 6) if len(part)]
    return {
        "rollouts": len(rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows),
        "solved": [float(np.mean([bool(rows[i]["resolved"]) for i in part])) for part in sixths],
        "invalid_call": [float(np.mean([rows[i]["effort"]["invalid_calls"] > 0 for i in part])) for part in sixths],
        "grown_tasks": len({row["task"] for row in grown}),
        "grown_solved": len({row["task"] for row in grown if row["resolved"]}),
    }


def training_steps(run: RunDirectory) -> dict[str, Any]:
    """Return, for each sixth of the steps, the rate per rollout of each error that a hint could name, the share of
    rollouts with an edit, and the minutes from the first step to its end; further the step at which each alarm first
    fired, and means over the steps of |dlogp|, k3, the masked share and the shares of router replay."""
    lines = {line["step"]: line for line in read_jsonl(run.stage_metrics("rollouts"))}
    sixths = [part for part in np.array_split([lines[step] for step in sorted(lines)], 6) if len(part)]
    errors = sorted({name for line in lines.values() for name in line["hints"]["rate"]})

    def mean(value: Callable[[Mapping[str, Any]], float]) -> list[float]:
        return [float(np.mean([value(line) for line in part])) for part in sixths]

    trainer = {line["step"]: line for line in read_jsonl(run.stage_metrics("trainer"))}
    watched = (
        "dlogp_mean",
        "dlogp_p99",
        "dlogp_max",
        "k3",
        "masked_share",
        "replay_differs_share",
        "replay_refused_share",
    )
    alarms: dict[str, int] = {}
    for line in read_jsonl(run.stage_metrics("alarms")):
        alarms.setdefault(line["alarm"], line["step"])
    said = {name: [line[name] for line in trainer.values() if name in line] for name in watched}
    times = [trainer[step]["time"] for step in sorted(trainer)]
    ends = [times[part[-1]] for part in np.array_split(np.arange(len(times)), 6) if len(part)]
    return {
        "errors": {name: mean(lambda line, name=name: line["hints"]["rate"][name]) for name in errors},
        "edited": mean(lambda line: line["edit_rate"]),
        "minutes": [(end - times[0]) / 60 for end in ends],
        "first_alarms": alarms,
        **{name: float(np.mean(values)) for name, values in said.items() if values},
    }


def summaries(store: TrajectoryStore, run: RunDirectory, evaluation: str) -> dict[str, float]:
    """Return statistics of the summaries in an evaluation; empty if there are none.

    ``per_episode``: mean number; ``solved_with_one``: pass rate of the episodes that wrote one; ``name_the_file``:
    share of summaries that name the file which the solution changes; ``plan``: share that state the next edit.
    """
    request = load_recipe(run.recipe).harness.summary.request
    rows = store.rows(f"source = 'eval' AND group_id LIKE '{evaluation}:%'")
    wrote = [row for row in rows if row["effort"]["summaries"]]
    files: dict[str, str] = {}
    for path in run.tasks("synthetic-heldout").glob("*/task.toml") if wrote else ():
        task = Task.load(path.parent)
        files[task.name] = next(iter(task.solution_files()))
    named: list[tuple[bool, bool]] = []
    for row in wrote:
        trajectory = store.get(row["id"])
        messages = [] if trajectory is None else trajectory.messages
        for asked, said in pairwise(messages):
            if asked.get("content") == request and said["role"] == "assistant":
                text = str(said.get("content"))
                named.append((files[row["task"]] in text, PLAN in text))
    if not named:
        return {}
    return {
        "per_episode": float(np.mean([row["effort"]["summaries"] for row in rows])),
        "solved_with_one": float(np.mean([bool(row["resolved"]) for row in wrote])),
        "name_the_file": float(np.mean([file for file, _ in named])),
        "plan": float(np.mean([plan for _, plan in named])),
    }


@dataclass(frozen=True)
class RunNoise:
    """Variance of pass@1 (or best-of-k) between runs of one recipe and seed, with its degrees of freedom."""

    variance: float
    freedom: int


def run_noise(works: Sequence[Arms], best: bool = False) -> RunNoise | None:
    """Return the noise pooled over the seeds whose control was run more than once; None if there are none."""
    squares, freedom = 0.0, 0
    for found in works:
        repeated = [found.get(name, {}) for name in (CONTROL, *AGAIN)]
        for seed in repeated[0]:
            rates = [_by_task(each[seed].evaluation, best).values() for each in repeated if seed in each]
            means = np.array([np.mean(list(each)) for each in rates])
            squares += float(((means - means.mean()) ** 2).sum())
            freedom += len(means) - 1
    return RunNoise(squares / freedom, freedom) if freedom else None


def effect(
    arm: Mapping[int, Arm],
    controls: Sequence[Mapping[int, Arm]],
    best: bool = False,
    noise: RunNoise | None = None,
    only: Collection[str] = (),
) -> Estimate:
    """Return the mean over seeds and tasks (``only`` these, if any are given) of arm minus control in pass@1 (or
    best-of-k).

    ``controls``: runs of the control by seed, averaged for each seed; the first has all seeds of ``arm``. Without
    ``noise`` the interval is over tasks alone; with it, the interval is mean +- t * sqrt(variance over tasks + variance
    of the difference of the runs' means).
    """
    by_task: dict[str, list[float]] = {}
    for seed in arm:
        ours = _by_task(arm[seed].evaluation, best)
        theirs = [_by_task(each[seed].evaluation, best) for each in controls if seed in each]
        for task in set(ours).intersection(*theirs):
            by_task.setdefault(task, []).append(ours[task] - float(np.mean([each[task] for each in theirs])))
    values = [float(np.mean(by_task[task])) for task in sorted(by_task) if not only or task in only]
    if noise is None:
        return bootstrap(values, bounds=(-1.0, 1.0))
    runs = sum(noise.variance * (1 + 1 / sum(seed in each for each in controls)) for seed in arm) / len(arm) ** 2
    error = math.sqrt(np.var(values, ddof=1) / len(values) + runs)
    mean, reach = float(np.mean(values)), t_quantile(NormalDist().inv_cdf(0.975), noise.freedom) * error
    return Estimate(mean, mean - reach, mean + reach)


def thirds(control: Mapping[int, Arm]) -> dict[str, list[str]]:
    """Return the third of the tasks that the policies before RL solved most often (``easy``) and least often
    (``hard``)."""
    tasks = sorted(next(iter(control.values())).before)
    order = sorted(tasks, key=lambda task: (np.mean([each.before[task] for each in control.values()]), task))
    third = len(order) // 3
    return {"easy": order[-third:], "hard": order[:third]}


def by_task(arm: Mapping[int, Arm], tasks: Sequence[str], key: str) -> list[float]:
    """Return the effort ``key`` of an episode on each task, averaged over seeds."""
    return [float(np.mean([each.effort[task][key] for each in arm.values()])) for task in tasks]


def ratio_of_sums(arm: Sequence[float], control: Sequence[float]) -> Estimate:
    """Return the sum of the arm divided by that of the control, both given by task; the interval resamples tasks."""
    pairs = np.array([arm, control])
    drawn = np.random.default_rng(0).integers(0, len(arm), (4000, len(arm)))
    sums = pairs[:, drawn].sum(axis=2)
    low, high = np.percentile(sums[0] / sums[1], [2.5, 97.5])
    return Estimate(float(pairs[0].sum() / pairs[1].sum()), float(low), float(high))


def report(works: Sequence[Arms], steps: int, out: Path, add: bool = False) -> None:
    """Write the result: each arm against the control of the same folder and seeds. ``add``: beside what ``out`` says of
    other arms, with its noise between runs if no folder has a control that was repeated."""
    old = json.loads(out.read_text()) if add and out.exists() else {"figures": {}, "detail": {}}
    if old["detail"].get("steps", steps) != steps:
        raise SystemExit(f"{out} is of {old['detail']['steps']} steps; give --steps {old['detail']['steps']}")
    figures: dict[str, float | None] = old["figures"]
    noises = run_noise(works), run_noise(works, best=True)
    if noises[0] is None and old["detail"].get("runs_differ_by_sd"):
        repeated = old["detail"]
        freedom = sum(seed.startswith("seed ") for name in AGAIN for seed in repeated.get(name, {}))
        noises = RunNoise(repeated["runs_differ_by_sd"] ** 2, freedom), noises[1]
    detail: dict[str, Any] = old["detail"] | {
        "steps": steps,
        "runs_differ_by_sd": noises[0] and math.sqrt(noises[0].variance),
    }
    written: set[str] = set()
    for number, found in enumerate(works):
        for name, runs in found.items():
            own = (number == 0 and not old["detail"]) or name != CONTROL
            title = name if own else f"{name} of {', '.join(sorted(set(found) - {CONTROL}))}"
            if title in written:
                raise SystemExit(f"{name} lies in two of the folders; leave one out")
            written.add(title)
            detail[title] = {"settings": ARMS[name], **{f"seed {seed}": arm.detail() for seed, arm in runs.items()}}
            control = {seed: arm for seed, arm in found.get(CONTROL, {}).items() if seed in runs}
            if name != CONTROL and control:
                controls = [control, *(found.get(each, {}) for each in AGAIN if name not in AGAIN)]
                more, about = _compared(name, {seed: runs[seed] for seed in control}, controls, *noises)
                figures |= more
                detail[title] |= about
    write_result("ablations", figures, detail, out)


def _compared(
    name: str,
    arm: Mapping[int, Arm],
    controls: Sequence[Mapping[int, Arm]],
    noise: RunNoise | None,
    best_noise: RunNoise | None,
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return figures and details of one arm. Effects are against the mean of ``controls``, all else against the
    first."""
    control = controls[0]
    gain = effect(arm, controls, noise=noise)
    best = effect(arm, controls, best=True, noise=best_noise)
    figures: dict[str, float | None] = {
        f"{name}_effect": gain.mean,
        f"{name}_ci95_low": gain.low,
        f"{name}_ci95_high": gain.high,
        f"{name}_seeds": len(arm),
        f"{name}_best_effect": best.mean,
        f"{name}_tokens_per_solved_ratio": _ratio(arm, control),
    }
    about: dict[str, Any] = {
        "effort_effects": {
            key: float(np.mean([arm[s].evaluation.effort[key] - control[s].evaluation.effort[key] for s in arm]))
            for key in EFFORT
        },
        "interval_over_tasks_alone": interval(effect(arm, controls)),
        "effect_by_seed": {str(s): effect({s: arm[s]}, controls).mean for s in arm},
    }
    if two := next(iter(arm.values())).two_bugs:
        # Over tasks alone: the known noise between runs is that of the mean over all tasks.
        one = set(control[next(iter(arm))].before) - two
        about |= {
            f"effect_on_{which}": interval(effect(arm, controls, only=of))
            for which, of in (("one_bug", one), ("two_bugs", two))
        }
    for which, tasks in thirds(control).items():
        tokens = ratio_of_sums(*(by_task(each, tasks, "sampled_tokens") for each in (arm, control)))
        figures[f"{name}_tokens_ratio_{which}"] = tokens.mean
        invalid = [float(np.mean(by_task(each, tasks, "invalid_calls"))) for each in (control, arm)]
        about[which] = {"tokens_ratio": interval(tokens), "invalid_calls_of_control_and_arm": invalid}
    return figures, about


def _ratio(arm: Mapping[int, Arm], control: Mapping[int, Arm]) -> float | None:
    """Return the tokens per solved task divided by the control's, averaged over seeds; None if a seed solved
    nothing."""
    ratios = []
    for seed in arm:
        ours, theirs = arm[seed].tokens_per_solved(), control[seed].tokens_per_solved()
        if ours is None or theirs is None:
            return None
        ratios.append(ours / theirs)
    return float(np.mean(ratios))


def _by_task(found: Evaluation, best: bool) -> dict[str, float]:
    return dict(zip(found.tasks, found.best_by_task if best else found.pass1_by_task, strict=True))


def _keep_before(base: RunDirectory, run: RunDirectory) -> None:
    """Copy the evaluation before RL, which is the same for every arm, from ``base``."""
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
