"""RL with many more rollouts than the laptop recipe has, beside its baselines; made for a machine with a GPU.

``python benchmarks/scale.py prepare WORK --seed 0`` makes what needs no GPU: evaluation tasks, pretraining text and
demonstrations of the evening recipe. ``python benchmarks/scale.py play WORK --seed 0 --seconds 560`` does the rest
within that time: pretraining and SFT by the stages of ``woodshed run``, then rejection sampling from the SFT policy,
then RL with at most as many rollouts, and SFT again on what rejection sampling found. Several seeds may play at once.
``python benchmarks/scale.py report WORK`` writes the result of all seeds.

Rollouts are those of ``benchmarks/research.py`` (``in_process.py``): the real engine, harness and tests, in
``--workers`` processes, each with its own engine. Steps are synchronous and on policy; no training task is used twice
in an arm. RL starts from the SFT policy at its best temperature (the head divided by it, or by ``--coldest`` if that is
higher). Every arm is evaluated on held-out tasks at the temperature that suits it best on the development tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from in_process import Played, Player, Tests, describe, load_tasks
from research import batch_of, credit
from result import without_nan, write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.settings import EngineSettings
from woodshed.evaluate.statistics import bootstrap
from woodshed.gateway.rendering import Rendering
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.policy.state import hf_state
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.stages.corpus import make_corpus
from woodshed.stages.demonstrations import demonstrate
from woodshed.stages.examples import Example, load_examples
from woodshed.stages.make_tasks import make_tasks
from woodshed.stages.policy import fine_tune, fine_tune_on, pretrain
from woodshed.tasks.generators.synthetic.spec import draw_synthetic
from woodshed.tasks.generators.synthetic.write import write_synthetic
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer

SPAWN = get_context("spawn")
ARMS = ("sft", "rejection", "rl")
PER_TASK = 4
"""Most solved rollouts of one task that SFT after rejection sampling learns from."""


async def serve(pipe: Connection, root: Path, number: int, args: Namespace) -> None:
    """A worker: plays what is asked for with the weights it was last sent. Training tasks are drawn as it starts."""
    torch.set_num_threads(1)
    recipe, run = load_recipe(root / "recipe.toml"), RunDirectory(root)
    policy = load_policy(run.policy("pretrain"))
    settings = EngineSettings(
        threads=1, seed=1000 * args.seed + number, graphs=args.graphs, max_running=256, prefill_tokens=4096
    )
    engine = LocalEngine(policy.decoder, settings=settings, device=args.engine_device)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        (Path(scratch) / "boxes").mkdir()
        backend = NamespaceBackend(Path(scratch) / "boxes")
        player = Player(engine, Rendering(policy.format, policy.tokenizer), recipe.harness, Tests(backend))
        tasks = {split: load_tasks(run.tasks(f"synthetic-{split}")) for split in ("dev", "heldout")}
        tasks["train"] = []
        for spec in draw_synthetic(
            args.tasks, split="train", seed=args.seed + 7000, start=number * args.tasks, workers=1
        ):
            tasks["train"].append(write_synthetic(spec, Path(scratch) / "tasks" / spec.name.split("/")[-1]))
        pipe.send("ready")
        version = 0
        while (asked := await asyncio.to_thread(pipe.recv)) is not None:
            weights, split, indices, samples, temperature = asked
            if weights:
                version += 1
                state = torch.load(weights, map_location=args.engine_device)
                await engine.update_weights(version, state)
            plays = [(tasks[split][i],) for i in indices for _ in range(samples)]
            pipe.send(await player.play_all(plays, temperature, slots=256))
        await engine.close()
        await backend.close()


def work(pipe: Connection, root: Path, number: int, args: Namespace) -> None:
    asyncio.run(serve(pipe, root, number, args))


class Crew:
    """The workers of one seed."""

    def __init__(self, root: Path, args: Namespace) -> None:
        self.args, self.pipes = args, list[Connection]()
        self.weights = Path(tempfile.mkdtemp(dir=args.scratch)) / "weights.pt"
        for number in range(args.workers):
            ours, theirs = SPAWN.Pipe()
            SPAWN.Process(target=work, args=(theirs, root, number, args), daemon=True).start()
            theirs.close()
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()
        self._fresh = False

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Weights of all that is played from now on."""
        torch.save({name: value.detach() for name, value in state.items()}, self.weights)
        self._fresh = True

    def _play(self, split: str, shares: Sequence[Sequence[int]], samples: int, temperature: float) -> list[Played]:
        weights, self._fresh = (str(self.weights) if self._fresh else ""), False
        for pipe, share in zip(self.pipes, shares, strict=True):
            pipe.send((weights, split, list(share), samples, temperature))
        return [played for pipe in self.pipes for played in pipe.recv()]

    def train(self, step: int, temperature: float = 1.0) -> list[Played]:
        """Rollouts of step ``step``: every worker's next tasks."""
        each = self.args.prompts // self.args.workers
        share = range(step * each, (step + 1) * each)
        return self._play("train", [share] * self.args.workers, self.args.group, temperature)

    def evaluate(self, split: str, samples: int, temperature: float) -> list[Played]:
        count, workers = self.args.evaluated, self.args.workers
        return self._play(split, [range(i, count, workers) for i in range(workers)], samples, temperature)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


class Log:
    """JSON lines, with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        self.path, self.began = path, time.monotonic()
        path.write_text("")

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def say(self, kind: str, **figures: Any) -> None:
        line = {"kind": kind, "seconds": round(self.seconds(), 1), **figures}
        with self.path.open("a") as file:
            file.write(json.dumps(without_nan(line)) + "\n")
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in line.items() if k != "by_task"}
        print(json.dumps(without_nan(shown)), flush=True)


def best_temperature(crew: Crew, log: Log, arm: str, temperatures: Sequence[float]) -> float:
    rates = {}
    for temperature in temperatures:
        figures = describe(crew.evaluate("dev", crew.args.samples, temperature))
        rates[temperature] = figures["pass"]
        log.say(f"{arm} dev", temperature=temperature, **figures)
    return max(rates, key=lambda t: rates[t])


def evaluate(crew: Crew, log: Log, arm: str, policy: Policy, temperatures: Sequence[float]) -> float:
    """Evaluate an arm on the held-out tasks, and return the temperature that suits it best."""
    crew.load(hf_state(policy.decoder))
    temperature = best_temperature(crew, log, arm, temperatures)
    played = crew.evaluate("heldout", 8, temperature)
    by_task: dict[str, list[bool]] = defaultdict(list)
    for one in played:
        by_task[one.task.name].append(one.solved)
    log.say(f"{arm} heldout", temperature=temperature, **describe(played), by_task=by_task)
    return temperature


def sample_solved(crew: Crew, log: Log, until: float, temperature: float) -> tuple[int, list[Example]]:
    """(steps, examples): roll out the policy as it is until that many seconds have passed, and keep different solved
    episodes."""
    kept: dict[str, dict[bytes, Example]] = defaultdict(dict)
    for step in range(crew.args.tasks // (crew.args.prompts // crew.args.workers)):
        if log.seconds() > until:
            break
        played = crew.train(step, temperature)
        for one in played:
            tokens = one.segment.tokens
            if one.solved and len(kept[one.task.name]) < PER_TASK:
                kept[one.task.name][tokens.tobytes()] = Example(tokens, one.segment.sampled.astype(np.float32))
        if step % 10 == 0:
            log.say("rejection sampling", step=step, **describe(played))
    return step, [example for each in kept.values() for example in each.values()]


def learn(crew: Crew, log: Log, policy: Policy, recipe: Recipe, steps: int, until: float) -> int:
    """RL in place, with a mean baseline; the number of steps, at most ``steps``, comes back."""
    args = crew.args
    optimizer = {"kind": "adamw", "lr": args.lr}
    schedule = {"kind": "constant", "warmup_steps": 5}
    settings = {"optimizer": optimizer, "schedule": schedule, "microbatch_tokens": args.microbatch_tokens}
    trainer = Trainer(policy.decoder, TrainSettings.model_validate({**settings, "products": recipe.train.products}))
    tokens = float(args.prompts * args.group * recipe.rl.generation_budget)
    no_price, recent, spent = Namespace(rejected=0.0, repeated=0.0), list[Played](), {"sampling": 0.0, "training": 0.0}
    for step in range(steps):
        if log.seconds() > until:
            return step
        began = time.monotonic()
        crew.load(hf_state(policy.decoder))
        if step and step % args.every == 0:
            log.say("rl curve", step=step, **describe(crew.evaluate("dev", args.samples, 1.0)))
        sampled = time.monotonic()
        roots = crew.train(step)
        for one in roots:
            one.reward = float(one.solved) - 0.05 * min(10, one.episode.effort.invalid_calls)
        recent += roots
        played = time.monotonic()
        rows = credit(roots, [], no_price)
        random.Random(step).shuffle(rows)
        metrics = trainer.step(batch_of(rows, "rl", step + 1, tokens))
        spent["sampling"] += played - sampled
        spent["training"] += time.monotonic() - played + sampled - began
        if (step + 1) % 5 == 0:
            numbers = {k: metrics[k] for k in ("entropy", "dlogp_mean", "ess", "grad_norm") if k in metrics}
            log.say("rl train", step=step + 1, **describe(recent), **numbers, **spent)
            recent = []
    return steps


def play(root: Path, args: Namespace) -> None:
    torch.set_num_threads(1)
    log, recipe, run = Log(root / "scale.jsonl"), load_recipe(root / "recipe.toml"), RunDirectory(root)
    if not run.policy("pretrain").exists():
        pretrain(recipe, run)
    log.say("pretrained", **{k: v for k, v in run.read_result_of("pretrain").items() if k != "note"})
    if not run.policy("sft").exists():
        fine_tune(recipe, run)
    log.say("fine-tuned", **{k: v for k, v in run.read_result_of("sft").items() if k != "note"})
    crew = Crew(root, args)
    log.say("workers are ready")
    temperatures = recipe.evaluate.temperatures
    policy = load_policy(run.policy("sft"), device=args.device, dtype=torch.float32)
    start = max(args.coldest, evaluate(crew, log, "sft", policy, temperatures))
    with torch.no_grad():
        policy.decoder.head_weight.div_(start)
    crew.load(hf_state(policy.decoder))
    left = args.seconds - log.seconds() - args.last_seconds
    steps, found = sample_solved(crew, log, log.seconds() + left * args.rejection_share, 1.0)
    log.say("rejection sampled", step=steps, rollouts=steps * args.prompts * args.group, examples=len(found))
    sft = recipe.learn.sft.model_copy(
        update={"batch_tokens": args.sft_tokens, "microbatch_tokens": 4 * args.sft_tokens}
    )
    again = recipe.model_copy(update={"learn": recipe.learn.model_copy(update={"sft": sft})})
    examples = [*load_examples(run.examples(verified=True)), *found]
    beside = SPAWN.Process(target=fine_tune_on, args=(again, run, "rejection", examples))
    beside.start()
    policy.decoder.requires_grad_(True)
    done = learn(crew, log, policy, recipe, steps, args.seconds - args.last_seconds)
    log.say("rl", step=done, rollouts=done * args.prompts * args.group)
    save_policy(replace(policy, version=done), run.policy("final"))
    evaluate(crew, log, "rl", policy, [t / start for t in temperatures])
    beside.join()
    again_policy = load_policy(run.policy("rejection"), device=args.device, dtype=torch.float32)
    evaluate(crew, log, "rejection", again_policy, temperatures)
    crew.close()
    log.say("end")


def prepare(root: Path, args: Namespace) -> None:
    recipe = load_recipe("evening", [f"seed={args.seed}", "tasks.synthetic.train=16", "rl.steps=1", *args.set])
    run = RunDirectory(root.absolute())
    run.root.mkdir(parents=True, exist_ok=True)
    run.recipe.write_text(dump_recipe(recipe))
    for stage in (make_tasks, make_corpus, demonstrate):
        began = time.monotonic()
        stage(recipe, run)
        print(f"{stage.__name__}: {time.monotonic() - began:.0f} s", flush=True)


def report(work: Path, name: str) -> None:
    """Gains of RL over each baseline, paired by task, by seed and over all seeds."""
    figures: dict[str, float | None] = {}
    detail: dict[str, Any] = {}
    gains: dict[str, list[float]] = defaultdict(list)
    for path in sorted(work.glob("seed*/scale.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        arms = {line["kind"].split()[0]: line for line in lines if line["kind"].endswith(" heldout")}
        tasks = {arm: {t: float(np.mean(v)) for t, v in line.pop("by_task").items()} for arm, line in arms.items()}
        found: dict[str, Any] = {"arms": {arm: bootstrap(list(each.values())).__dict__ for arm, each in tasks.items()}}
        for arm in ARMS[:2] if "rl" in tasks else ():
            difference = [tasks["rl"][t] - tasks[arm][t] for t in tasks["rl"] if arm in tasks]
            found[f"rl - {arm}"] = bootstrap(difference).__dict__
            gains[arm] += difference
        detail[path.parent.name] = {**found, "lines": lines}
    for arm, differences in gains.items():
        overall = bootstrap(differences)
        figures |= {f"gain_over_{arm}": overall.mean, f"gain_over_{arm}_ci95_low": overall.low}
        figures[f"gain_over_{arm}_ci95_high"] = overall.high
    write_result(name, {**figures, "seeds": float(len(detail))}, detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "play", "report"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], help="settings of the recipe, for prepare")
    parser.add_argument("--seconds", type=float, default=3600.0, help="to spend on everything")
    parser.add_argument("--last-seconds", type=float, default=75.0, help="of them, kept for the last evaluations")
    parser.add_argument("--rejection-share", type=float, default=0.36, help="of what is left after SFT")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2000, help="training tasks of each worker")
    parser.add_argument("--prompts", type=int, default=65, help="of a step; a multiple of the workers")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument(
        "--coldest", type=float, default=0.6, help="temperature of the SFT policy that rollouts have at least"
    )
    parser.add_argument("--sft-tokens", type=int, default=4096, help="of a batch of SFT after rejection sampling")
    parser.add_argument("--microbatch-tokens", type=int, default=65536)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4, help="of each development task")
    parser.add_argument("--evaluated", type=int, default=128, help="development and held-out tasks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--engine-device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graphs", action="store_true", help="engine.graphs")
    parser.add_argument("--scratch", default="/dev/shm", help="folder for tasks, boxes and weights")
    parser.add_argument("--name", default="scale", help="of the result")
    args = parser.parse_args()
    if args.what == "report":
        report(args.work, args.name)
        return
    if args.prompts % args.workers:
        parser.error("--prompts must be a multiple of --workers")
    root = args.work / f"seed{args.seed}"
    prepare(root, args) if args.what == "prepare" else play(root, args)


if __name__ == "__main__":
    main()
