"""Cheap trials of RL for synthetic tasks: engine, harness, tests and trainer in one process, on-policy, no overlap.

``python benchmarks/research.py RUN --tasks FOLDER --dev FOLDER --steps 100``: RUN is a run directory with SFT done.
Writes JSON lines: figures of the training batches every ten steps, and of the development tasks every ``--every`` steps
at each temperature of ``--eval``. Promising results must be confirmed by whole runs (``benchmarks/laptop.py``).

Options: ``--forks K`` (continuations from the first failed test of each rollout, credit by node), ``--rejected`` and
``--repeated`` (penalty on the turn of an edit that is rejected, or that repeats an earlier one), ``--credit attempts``
(each edit is credited by the test run that followed it), ``--method rejection`` (instead of RL, cross-entropy on solved
rollouts: the baseline with the same rollouts), ``--method positive`` (RL without the turns with negative advantage).
``--passes`` and ``--splits`` take more optimizer steps on the same rollouts, with the clipped surrogate of PPO.
``--hints`` distils hints in addition to the policy gradient (``hint_kl``); their triggers are counted in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from in_process import EDITS, Played, Player, Tests, describe, load_tasks, wasted_edits
from result import without_nan

from woodshed.engine.local import LocalEngine
from woodshed.engine.settings import EngineSettings
from woodshed.gateway.rendering import Rendering
from woodshed.harness.registry import ToolRegistry
from woodshed.policy.hf import load_policy, save_policy
from woodshed.policy.state import hf_state
from woodshed.recipe.load import load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rl.hints import Hinter, HintStats, renderer, usages
from woodshed.rl.hints.replies import Unplaced, replies_of
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.train.batch import Sequence as TrainSequence
from woodshed.train.batch import TrainBatch, pack
from woodshed.train.hinted import HintedMessage
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer

Advantages = dict[int, float]
"""Advantage of a turn's tokens, by turn (from 1)."""


def first_failed_test(played: Played) -> int | None:
    """Return the turn of the first test run after an accepted edit, if it failed and was not the last turn; else
    None."""
    edited = False
    for event in played.episode.events:
        if event.name in EDITS and event.error is None:
            edited = True
        elif event.name == "run_tests" and edited:
            failed = not suite_passed(event.result) and event.turn < len(played.turns)
            return event.turn if failed else None
    return None


def prices(played: Played, rejected: float, repeated: float) -> Advantages:
    """Return the price of each edit of an episode by its turn, 0 for edits that are neither rejected nor repeated."""
    return {
        event.turn: rejected * refused + repeated * again
        for event, refused, again in wasted_edits(played.episode.events)
        if event.turn > played.forked
    }


def outcomes(played: Played) -> Advantages:
    """Return, by turn, 1 for each edit after which the tests passed, 0 for other edits. An edit that was followed by
    another edit before any test counts as 0; an edit that no test followed counts as the episode was graded."""
    found: Advantages = {}
    untested = 0
    for event in played.episode.events:
        if event.name in EDITS:
            found[event.turn] = 0.0
            untested = event.turn if event.error is None else untested
        elif event.name == "undo":
            untested = 0
        elif event.name == "run_tests" and untested:
            found[untested] = float(suite_passed(event.result))
            untested = 0
    if untested:
        found[untested] = float(played.solved)
    return found


def credit_attempts(
    roots: Sequence[Played], rows: Sequence[tuple[Played, Advantages]], args: argparse.Namespace
) -> None:
    """Replace the advantages of edits in ``rows`` by: whether the tests passed with the edit, minus its price, minus
    the mean of this over the first edits (or over the later ones) of its group. Forks keep their advantages."""
    groups: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    tried: dict[int, Advantages] = {}
    for played in roots:
        cost = prices(played, args.rejected, args.repeated)
        tried[id(played)] = {turn: one - cost[turn] for turn, one in outcomes(played).items()}
    for played in roots:
        groups[played.task.name] += [(number > 0, one) for number, one in enumerate(tried[id(played)].values())]
    usual = {
        (name, later): float(np.mean([one for other, one in found if other == later] or [0.0]))
        for name, found in groups.items()
        for later in (False, True)
    }
    for played, advantages in rows:
        for number, (turn, one) in enumerate(tried.get(id(played), {}).items()):
            advantages[turn] = one - usual[played.task.name, number > 0]


async def sample(player: Player, tasks: Sequence[Task], args: argparse.Namespace) -> tuple[list[Played], list[Played]]:
    """Sample one step; return (rollouts, forks)."""
    roots = await player.play_all([(task,) for task in tasks for _ in range(args.group)], args.temperature)
    plays = []
    for index, root in enumerate(roots if args.forks else ()):
        turn = first_failed_test(root)
        if turn is not None:
            plays += [(root.task, root.turns[:turn], index)] * args.forks
    forks = await player.play_all(plays, args.temperature)
    for one in (*roots, *forks):
        one.reward = float(one.solved) - args.invalid * min(10, one.episode.effort.invalid_calls)
    return roots, forks


def credit(
    roots: Sequence[Played], forks: Sequence[Played], args: argparse.Namespace
) -> list[tuple[Played, Advantages]]:
    """Return advantages by node: a continuation is compared with its siblings, and the turns before it get the mean of
    the siblings minus the mean of the group."""
    children: dict[int, list[Played]] = defaultdict(list)
    for fork in forks:
        children[fork.parent].append(fork)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, root in enumerate(roots):
        groups[root.task.name].append(index)
    rows: list[tuple[Played, Advantages]] = []
    for members in groups.values():
        value = {i: float(np.mean([roots[i].reward, *(child.reward for child in children[i])])) for i in members}
        base = float(np.mean(list(value.values())))
        costs = [cost for i in members for cost in prices(roots[i], args.rejected, args.repeated).values()]
        usual = float(np.mean(costs)) if costs else 0.0
        for i in members:
            root, own = roots[i], children[i]
            node = own[0].forked if own else len(root.turns)
            advantages = {n: value[i] - base for n in range(1, node + 1)}
            advantages |= {n: root.reward - value[i] for n in range(node + 1, len(root.turns) + 1)}
            rows.append((root, advantages))
            rows += [(c, dict.fromkeys(range(node + 1, len(c.turns) + 1), c.reward - value[i])) for c in own]
        for played, advantages in rows[-len(members) - sum(len(children[i]) for i in members) :]:
            for turn, cost in prices(played, args.rejected, args.repeated).items():
                advantages[turn] = advantages.get(turn, 0.0) + usual - cost
    return rows


def hinted_messages(played: Played, hinter: Hinter, stats: HintStats) -> tuple[HintedMessage, ...]:
    """Return the messages of an episode that a hint would have improved, with the hint in their context."""
    run = Trajectory("", played.task.name, "", "train", "", "", "submitted", messages=played.episode.messages)
    run = replace(run, events=played.episode.events)
    try:
        texts = hinter.find(run, replies_of(run), stats)
    except Unplaced:
        stats.unplaced += 1
        return ()
    assert hinter.render is not None
    found = []
    for number in sorted(texts)[: hinter.settings.per_trajectory]:
        turn = played.turns[number]
        begin = turn.start - 1  # the chat format's token that begins a call
        hint = np.array(hinter.render("\n".join(texts[number])), np.int32)
        tokens = played.segment.tokens
        context = np.concatenate((tokens[:begin], hint, tokens[begin : turn.start]))
        if len(context) + turn.end - turn.start <= hinter.max_positions:
            found.append(HintedMessage(turn.start, turn.end, context))
    return tuple(found)


def batch_of(
    rows: Sequence[tuple[Played, Mapping[int, float]]],
    part: str,
    step: int,
    denominator: float,
    hints: Mapping[int, tuple[HintedMessage, ...]] | None = None,
    weight: float = 0.0,
) -> TrainBatch:
    sequences = []
    hints = hints or {}
    for played, advantages in rows:
        weights = np.zeros(len(played.segment), np.float32)
        marked = hints.get(id(played), ())
        for number, turn in enumerate(played.turns, 1):
            if number > played.forked:
                weights[turn.start : turn.end] = advantages.get(number, 0.0)
        if weights.any() or marked:
            segment = played.segment
            parts = {part: weights}
            if weight:
                parts["hint_kl"] = np.zeros(len(segment), np.float32)
                for message in marked:
                    parts["hint_kl"][message.start : message.end] = weight
            behaviour = np.where(segment.sampled, segment.logprobs, np.nan).astype(np.float32)
            sequences.append(
                TrainSequence(
                    segment.tokens, parts, behaviour_logprobs=behaviour, versions=segment.versions, hinted=marked
                )
            )
    denominators = {part: denominator} | ({"hint_kl": denominator} if weight else {})
    return pack(sequences, id=f"step-{step}", step=step, denominators=denominators)


def solved_rows(roots: Sequence[Played]) -> list[tuple[Played, Advantages]]:
    return [(p, dict.fromkeys(range(1, len(p.turns) + 1), 1.0)) for p in roots if p.solved]


def hint_figures(metrics: Mapping[str, float], stats: HintStats) -> dict[str, float]:
    rates = {f"hints/{name}": count / max(1, stats.episodes) for name, count in stats.found.items()}
    return {k: v for k, v in metrics.items() if k.startswith("hint")} | rates


def make_hinter(policy: Any, recipe: Recipe, tasks: Sequence[Task], weight: float) -> Hinter:
    settings = recipe.rl.hints.model_copy(update={"weight": weight, "role": "tool"})
    tools = usages(policy.format, ToolRegistry(recipe.harness.tools, recipe.harness).schemas())
    render = renderer(policy.format, policy.tokenizer, settings.role)
    longest = recipe.policy.max_positions
    return Hinter(settings, {t.name: t for t in tasks}, tools=tools, render=render, max_positions=longest)


async def trial(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    recipe = load_recipe(args.run / "recipe.toml")
    limits = recipe.harness.limits.model_copy(update={"turns": args.turns} if args.turns else {})
    harness = recipe.harness.model_copy(update={"limits": limits})
    place = args.policy or args.run / "policy" / "sft"
    policy, learner = load_policy(place), load_policy(place)
    learner.decoder.requires_grad_(True)
    optimizer = {"kind": "adamw", "lr": args.lr} | ({"kind": "muon", "muon_lr": args.muon} if args.muon else {})
    hint_kl = {"form": args.hint_form, "gate_high": args.gate_high}
    settings = TrainSettings.model_validate({"optimizer": optimizer, "hint_kl": hint_kl})
    trainer = Trainer(learner.decoder, settings)
    tasks, dev = load_tasks(args.tasks), load_tasks(args.dev)
    random.Random(args.seed).shuffle(tasks)
    if len(tasks) < args.steps * args.prompts:
        raise SystemExit(f"--tasks has {len(tasks)} tasks, {args.steps * args.prompts} are needed: none is used twice")
    hinter = make_hinter(policy, recipe, tasks, args.hints)
    recent: list[Played] = []
    spent = {"sampling_seconds": 0.0, "training_seconds": 0.0}
    with args.out.open("a") if args.out else sys.stdout as out, tempfile.TemporaryDirectory() as scratch:

        def say(kind: str, step: int, figures: Mapping[str, float]) -> None:
            rounded = without_nan({name: round(value, 4) for name, value in figures.items()})
            print(json.dumps({"kind": kind, "step": step, **rounded}), file=out)
            out.flush()

        engine = LocalEngine(policy.decoder, settings=EngineSettings(threads=1, seed=args.seed))
        backend = NamespaceBackend(Path(scratch))
        player = Player(engine, Rendering(policy.format, policy.tokenizer), harness, Tests(backend))
        try:
            for step in range(args.steps + 1):
                if step % args.every == 0 or step == args.steps:
                    for temperature in args.eval:
                        played = await player.play_all([(t,) for t in dev for _ in range(args.samples)], temperature)
                        say(f"dev at {temperature:g}", step, describe(played))
                if step == args.steps:
                    break
                began = time.perf_counter()
                roots, forks = await sample(player, tasks[step * args.prompts : (step + 1) * args.prompts], args)
                recent += roots
                sampled = time.perf_counter()
                count = float(args.prompts * args.group * recipe.rl.generation_budget)
                if args.method == "rejection":
                    part, rows = "ce", solved_rows(roots)
                else:
                    part, rows = "ppo" if args.passes * args.splits > 1 else "rl", credit(roots, forks, args)
                    if args.credit == "attempts":
                        credit_attempts(roots, rows, args)
                    if args.method == "positive":
                        rows = [(played, {n: max(0.0, a) for n, a in by_turn.items()}) for played, by_turn in rows]
                stats = HintStats(episodes=len(roots))
                found = {id(played): hinted_messages(played, hinter, stats) for played in roots}
                marked = found if args.hints else {}
                for _ in range(args.passes):
                    random.Random(step).shuffle(rows)
                    for split in range(args.splits):
                        some = rows[split :: args.splits]
                        batch = batch_of(some, part, step + 1, count / args.splits, marked, args.hints)
                        metrics = trainer.step(batch)
                state: dict[str, Any] = {k: v.detach() for k, v in hf_state(learner.decoder).items()}
                await engine.update_weights(step + 1, state)
                spent["sampling_seconds"] += sampled - began
                spent["training_seconds"] += time.perf_counter() - sampled
                if (step + 1) % 10 == 0:
                    entropy = metrics.get("entropy", 0.0)
                    say(
                        "train",
                        step + 1,
                        {
                            **describe(recent),
                            "entropy": entropy,
                            "forks": len(forks),
                            **spent,
                            **hint_figures(metrics, stats),
                        },
                    )
                    recent = []
        finally:
            await engine.close()
            await backend.close()
    if args.save:
        save_policy(replace(learner, version=args.steps), args.save)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--policy", type=Path, help="instead of the run's SFT policy")
    parser.add_argument("--tasks", type=Path, required=True, help="training tasks; each is used once")
    parser.add_argument("--dev", type=Path, required=True, help="development tasks")
    parser.add_argument("--method", choices=("rl", "positive", "rejection"), default="rl")
    parser.add_argument("--credit", choices=("episodes", "attempts"), default="episodes", help="of edits")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--forks", type=int, default=0)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--muon", type=float, default=0.0, help="rate of Muon for the matrices; 0: AdamW for all")
    parser.add_argument("--passes", type=int, default=1, help="times that each rollout is trained")
    parser.add_argument("--splits", type=int, default=1, help="optimizer steps of one pass")
    parser.add_argument("--temperature", type=float, default=1.0, help="of training rollouts")
    parser.add_argument("--invalid", type=float, default=0.05, help="price of an invalid call")
    parser.add_argument("--rejected", type=float, default=0.0)
    parser.add_argument("--repeated", type=float, default=0.0)
    parser.add_argument(
        "--hints", type=float, default=0.0, help="weight of hint_kl; needs SFT with learn.demonstrations.hinted"
    )
    parser.add_argument("--hint-form", choices=("sampled", "forward", "reverse", "jsd"), default="reverse")
    parser.add_argument("--gate-high", type=float, default=0.0, help="train.hint_kl.gate_high")
    parser.add_argument("--turns", type=int, help="limit of turns, instead of the recipe's")
    parser.add_argument("--eval", type=float, nargs="+", default=[0.3, 0.6, 1.0], help="temperatures")
    parser.add_argument("--samples", type=int, default=4, help="of each development task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to append to")
    parser.add_argument("--save", type=Path, help="folder for the policy at the end")
    asyncio.run(trial(parser.parse_args()))


if __name__ == "__main__":
    main()
