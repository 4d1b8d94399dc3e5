"""Compare GRPO steps with TRL's: samples per second, and time to a pass rate, with the same policy, tasks and machine.

``python benchmarks/trl_grpo.py --run runs/laptop --trl PYTHON``: PYTHON is an interpreter that has this project and TRL
(``pip install trl==1.16.0``). Both sides start from the run's SFT policy and get the same prompts in the same order:
the start of a conversation in which the broken file was read. A sample is one edit, at most 40 tokens at temperature 1;
its reward is 1 if all tests of the task, including hidden ones, pass in a box. A step is 12 prompts with 8 samples each
and one AdamW step on the same loss: reward minus the group's mean, divided by a constant (Dr. GRPO), without KL and
without effective clipping. There is only one turn, because several turns with tools would compare harnesses.

Our side is the engine and the trainer of a run in one process, one after the other, so that a run's gain from running
both at the same time does not count. TRL generates with transformers (its default) and trains in float32 with the same
number of threads. Each side is a process of its own; they alternate. Samples per second do not include the first steps.
Figures are ratios of medians, and are added to results/throughput.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result import RESULTS, commit, hardware, without_nan

PROMPTS, GROUP, TOKENS = 12, 8, 40
RATE, WARMUP = 3e-4, 5
LEFT_OUT = 3
"""Number of first steps that are not timed."""
SMOOTH = 8
"""Number of steps over which the pass rate is averaged."""
TOOLS = ("read_file", "edit_line")


@dataclass(frozen=True)
class Prompt:
    """The prompt of one task: its ``text`` and tokens ``ids``; ``path``: the file that was read in it."""

    task: Any
    path: str
    text: str
    ids: tuple[int, ...]


class Grader:
    """Computes the rewards of sampled edits by running the task's tests in a box, in its own event loop."""

    def __init__(self, scratch: str, tools: list[dict[str, Any]], chat: Any) -> None:
        from in_process import Tests

        from woodshed.sandbox.backends.namespace.backend import NamespaceBackend

        self.loop = asyncio.new_event_loop()
        self.backend = NamespaceBackend(Path(scratch))
        self.tests, self.tools, self.chat = Tests(self.backend), tools, chat

    def rewards(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        async def all_of_them() -> list[float]:
            return list(await asyncio.gather(*map(self._reward, prompts, texts)))

        return self.loop.run_until_complete(all_of_them())

    async def _reward(self, prompt: Prompt, text: str) -> float:
        from woodshed.harness.boxed import program
        from woodshed.rollout.rewards.test_runs import suite_passed
        from woodshed.tasks.languages.python.mutations import apply_line

        calls = self.chat.parse(text, self.tools).tool_calls
        edit = json.loads(calls[0].arguments_json) if calls else {}
        files = prompt.task.workspace_files()
        if not calls or calls[0].name != "edit_line" or edit.get("path") not in files or "line" not in edit:
            return 0.0
        try:
            changed = apply_line(files[edit["path"]].decode(), int(edit["line"]), str(edit.get("text", "")))
        except (IndexError, ValueError):
            return 0.0
        graded = {
            **files,
            edit["path"]: changed.encode(),
            "cases.json": prompt.task.test_files()["cases.harbor.json"],
        }
        done = await self.tests.run(graded, program("script", {"path": "run_tests.py"}))
        return float(suite_passed(done.stdout.decode(errors="replace")))

    def close(self) -> None:
        self.loop.run_until_complete(self.backend.close())


def prompts_of(run: Path, policy: Any, tools: list[dict[str, Any]], count: int, seed: int) -> list[Prompt]:
    """Return prompts of ``count`` training tasks of a run, in an order that depends on ``seed``."""
    from in_process import load_tasks

    from woodshed.stages.demonstrator import fix_of
    from woodshed.stages.render import render_conversation

    tasks = load_tasks(run / "tasks" / "synthetic-train")
    random.Random(seed).shuffle(tasks)
    if len(tasks) < count:
        raise SystemExit(f"{run} has {len(tasks)} training tasks, {count} are needed: fewer --steps")
    found = []
    for task in tasks[:count]:
        fix = fix_of(task)
        numbered = "".join(f"\n{n}{line}" for n, line in enumerate(fix.before.rstrip("\n").split("\n"), 1))
        function = {"name": "read_file", "arguments": json.dumps({"path": fix.path})}
        messages = [
            {"role": "user", "content": f"fix: {fix.path.removesuffix('.py')}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c", "content": numbered},
        ]
        tokens, _ = render_conversation(messages, tools, policy.format, policy.tokenizer)
        ids = (*tokens.tolist(), *policy.tokenizer.encode_pieces(policy.format.generation()))
        found.append(Prompt(task, fix.path, policy.tokenizer.decode(list(ids)), ids))
    return found


class Log:
    """For each step, the seconds since the first step began, and the mean reward."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.rows: list[tuple[float, float]] = []

    def step(self, reward: float) -> None:
        self.rows.append((time.perf_counter() - self.began, reward))


def side_ours(policy: Any, prompts: Sequence[Prompt], grader: Grader, args: argparse.Namespace) -> Log:
    import numpy as np

    from woodshed.engine.local import LocalEngine
    from woodshed.engine.protocol import Sampling
    from woodshed.engine.settings import EngineSettings
    from woodshed.policy.hf import load_policy
    from woodshed.policy.state import hf_state
    from woodshed.train.batch import Sequence as Row
    from woodshed.train.batch import pack
    from woodshed.train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
    from woodshed.train.trainer import Trainer

    learner = load_policy(args.run / "policy" / "sft")
    learner.decoder.requires_grad_(True)
    schedule = ScheduleSettings(warmup_steps=WARMUP)
    trainer = Trainer(learner.decoder, TrainSettings(optimizer=OptimizerSettings(lr=RATE), schedule=schedule))
    engine = LocalEngine(policy.decoder, settings=EngineSettings(threads=args.threads, seed=args.seed))
    stop = tuple(policy.tokenizer.special_ids[token] for token in policy.format.stop_tokens)
    sampling = Sampling(max_tokens=TOKENS, stop_ids=stop)
    log = Log()

    async def steps() -> None:
        for step in range(args.steps):
            own = [p for p in prompts[step * PROMPTS : (step + 1) * PROMPTS] for _ in range(GROUP)]
            done = await asyncio.gather(*(engine.generate(p.ids, sampling) for p in own))
            texts = [policy.tokenizer.decode(each.tokens) for each in done]
            rewards = np.array(await asyncio.to_thread(grader.rewards, own, texts))
            groups = rewards.reshape(PROMPTS, GROUP)
            advantages = (groups - groups.mean(1, keepdims=True)).reshape(-1)
            rows = []
            for prompt, each, advantage in zip(own, done, advantages, strict=True):
                if advantage:
                    tokens = np.array([*prompt.ids, *each.tokens], np.int32)
                    weights = np.zeros(len(tokens), np.float32)
                    weights[len(prompt.ids) :] = advantage
                    behaviour = np.full(len(tokens), np.nan, np.float32)
                    behaviour[len(prompt.ids) :] = each.logprobs
                    versions = np.where(np.isnan(behaviour), -1, step).astype(np.int32)
                    rows.append(Row(tokens, {"rl": weights}, behaviour_logprobs=behaviour, versions=versions))
            size = float(PROMPTS * GROUP * TOKENS)
            trainer.step(pack(rows, id=f"step-{step}", step=step + 1, denominators={"rl": size}))
            await engine.update_weights(step + 1, {k: v.detach() for k, v in hf_state(learner.decoder).items()})
            log.step(float(rewards.mean()))
        await engine.close()

    asyncio.run(steps())
    return log


def side_trl(policy: Any, prompts: Sequence[Prompt], grader: Grader, args: argparse.Namespace) -> Log:
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    place = str(args.run / "policy" / "sft")
    tokenizer = AutoTokenizer.from_pretrained(place, padding_side="left")
    tokenizer.eos_token = policy.format.stop_tokens[0]
    tokenizer.pad_token = tokenizer.eos_token
    for prompt in prompts[:PROMPTS]:
        if tuple(tokenizer(prompt.text)["input_ids"]) != prompt.ids:
            raise SystemExit("TRL's tokenizer reads a prompt differently; nothing can be compared")
    model = AutoModelForCausalLM.from_pretrained(place)
    ordered = prompts[: args.steps * PROMPTS]
    rewards: list[float] = []
    log = Log()

    def reward(number: list[int], completion_ids: list[list[int]], **_: Any) -> list[float]:
        texts = [policy.tokenizer.decode(list(ids)) for ids in completion_ids]
        found = grader.rewards([ordered[n] for n in number], texts)
        rewards[:] = found
        return found

    class Steps(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            log.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            log.step(statistics.mean(rewards))

    with tempfile.TemporaryDirectory() as out:
        settings = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            max_steps=args.steps,
            learning_rate=RATE,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=WARMUP,
            adam_beta1=0.9,
            adam_beta2=0.95,
            beta=0.0,
            loss_type="dr_grpo",
            scale_rewards="none",
            temperature=1.0,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=args.seed,
        )
        rows = datasets.Dataset.from_list([{"prompt": p.text, "number": n} for n, p in enumerate(ordered)])
        GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[Steps()],
        ).train()
    return log


def side(args: argparse.Namespace) -> None:
    import torch

    from woodshed.harness.registry import ToolRegistry
    from woodshed.harness.settings import HarnessSettings
    from woodshed.policy.hf import load_policy

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    policy = load_policy(args.run / "policy" / "sft")
    tools = ToolRegistry(TOOLS, HarnessSettings()).schemas()
    prompts = prompts_of(args.run, policy, tools, args.steps * PROMPTS, args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        grader = Grader(scratch, tools, policy.format)
        try:
            log = {"ours": side_ours, "trl": side_trl}[args.side](policy, prompts, grader, args)
        finally:
            grader.close()
    args.out.write_text(json.dumps(log.rows))


def samples_per_second(rows: Sequence[tuple[float, float]]) -> float:
    return PROMPTS * GROUP * (len(rows) - LEFT_OUT) / (rows[-1][0] - rows[LEFT_OUT - 1][0])


def seconds_to(rows: Sequence[tuple[float, float]], rate: float) -> float | None:
    """Return the seconds until the mean reward of the last ``SMOOTH`` steps reaches ``rate``; None if it never does."""
    for end in range(SMOOTH, len(rows) + 1):
        if statistics.mean(reward for _, reward in rows[end - SMOOTH : end]) >= rate:
            return rows[end - 1][0]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run of the laptop recipe with SFT done")
    parser.add_argument("--trl", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3, help="one seed each")
    parser.add_argument("--rise", type=float, default=0.08, help="pass rate to reach, above that of the first steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args)
        return
    runs: dict[str, list[list[tuple[float, float]]]] = {"ours": [], "trl": []}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(args.rounds):
            for name in runs:
                out = Path(scratch) / f"{name}{seed}.json"
                python = sys.executable if name == "ours" else args.trl
                given = [f"--run={args.run}", f"--steps={args.steps}", f"--threads={args.threads}", f"--seed={seed}"]
                subprocess.run([python, __file__, f"--side={name}", f"--out={out}", *given], check=True)
                runs[name].append(json.loads(out.read_text()))
                print(name, seed, f"{samples_per_second(runs[name][-1]):.1f} samples/s", flush=True)
    first = [reward for each in (*runs["ours"], *runs["trl"]) for _, reward in each[:SMOOTH]]
    target = statistics.mean(first) + args.rise
    speed = {name: statistics.median(map(samples_per_second, each)) for name, each in runs.items()}
    reached = {name: [seconds_to(rows, target) for rows in each] for name, each in runs.items()}
    times = {n: statistics.median(x for x in each if x is not None) for n, each in reached.items() if None not in each}
    figures: dict[str, float | None] = {
        "samples_per_s_vs_trl": speed["ours"] / speed["trl"],
        "time_to_pass_rate_vs_trl": times["trl"] / times["ours"] if len(times) == len(reached) else None,
    }
    detail = {
        "command": f"python benchmarks/trl_grpo.py --run RUN --steps {args.steps} --rounds {args.rounds}",
        "commit": commit(),
        "hardware": hardware(),
        "threads": args.threads,
        "samples_per_second": speed,
        "pass_rate_reached": target,
        "seconds_to_it": reached,
        "seconds_and_reward_by_step": runs,
    }
    path = RESULTS / "throughput.json"
    result = json.loads(path.read_text())
    result["figures"] |= without_nan(figures)
    result["detail"]["trl"] = without_nan(detail)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    print(json.dumps(figures, indent=1), f"added to {path}", sep="\n")


if __name__ == "__main__":
    main()
