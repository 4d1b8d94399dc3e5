"""Measure learning in an external agent: RL in unmodified mini-swe-agent, pass rates before and after.

``python benchmarks/foreign.py --seeds 0 1 2``. Each seed begins with the laptop recipe up to pretraining; ``--base``
may hold runs of that recipe, ``seed0`` and so on, which came that far. Such a policy has never seen the agent's only
tool, a shell. It learns the shell from the text of the laptop recipe and from a few of its demonstrations, with each
call written as the command that does the same (``sed`` for an edit). The demonstrations are run in boxes, and the
output is shown as the agent shows it; to check this, the agent itself plays some of them again and must send the same
tokens. They are few, as those in somebody else's agent are. With ``--demonstrations 1400 --epochs 1 --steps 150`` the
policy knows the agent well before RL (the result ``foreign_many``, docs/programs.md). The rest is an ordinary run with
``harness.program``, the policy that has read the text as ``policy.source``, and the demonstrations as
``learn.demonstrations.conversations``. As in the laptop recipe its final policy learns from them and from what RL
solved. With ``--add``, seeds that the result has already are kept, so that they can be run one at a time.

The agent is configured with a file, as its users do: short templates, because a tiny policy reads at most a thousand
tokens, and a model class that calls the gateway with the requests library (the default one imports LiteLLM, which takes
most of a rollout's processor time). Needs the package index. A seed takes about two hours on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recipe_runs import earlier_seeds, figures_of, learned, over_seeds, run_recipe, stage_minutes
from result import RESULTS, commit, write_result

from woodshed.evaluate.arms import AFTER, stage_of
from woodshed.gateway.app import build_app
from woodshed.harness.settings import HarnessSettings, ProgramSettings
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.stages import DemonstrationSettings
from woodshed.record.atomic import write_whole
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.sandbox.protocol import Limits
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec
from woodshed.stages.boxes import backend_of, layer_store
from woodshed.stages.corpus import conversations, library_functions
from woodshed.stages.demonstrator import Action, line_script
from woodshed.stages.examples import Example
from woodshed.stages.render import render_conversation
from woodshed.stages.servers import cores, threads_of
from woodshed.stages.supervised import train_on
from woodshed.stages.tasks import load_split, settle_key
from woodshed.tasks.generators.synthetic.function import draw_functions

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from gateway.parts import ADMIN, ScriptedEngine
from programs import play, serve_app

CONFIG = """agent:
  system_template: "-"
  instance_template: "{{ task }}"
  cost_limit: 0
environment:
  timeout: 10
model:
  observation_template: "{{ (output.output or 'ok')[:600] | trim }}"
  format_error_template: "error: {{ error }}"
"""
MODEL = """import os

from minisweagent.models.openrouter_model import OpenRouterModel


class GatewayModel(OpenRouterModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._api_url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        self._api_key = os.environ["OPENAI_API_KEY"]
"""
PROGRAM = ProgramSettings(
    command='printf %s "$MINI_CONFIG" > /tmp/mini.yaml; printf %s "$MINI_MODEL" > /tmp/gateway_model.py; '
    "mini -y --exit-immediately --agent-class default --model-class gateway_model.GatewayModel "
    '-m "$WOODSHED_MODEL" -c /tmp/mini.yaml -o /tmp/trajectory.json -t "$WOODSHED_TASK"',
    packages=("mini-swe-agent==2.4.6", "mcp"),
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",  # the gateway refuses a request at a limit: no retry
        "PYTHONPATH": "/tmp",
        "MINI_CONFIG": CONFIG,
        "MINI_MODEL": MODEL,
    },
)
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CHECKED = 5
"""Number of demonstrations, the longest, that the agent itself plays again."""
TEXT_TOKENS = 600_000
"""Number of tokens of pretraining text with shell commands, trained on before the demonstrations."""
SHOWN = 600
"""Maximum number of characters of a command's output that ``CONFIG`` shows."""
SCRIPTS = DemonstrationSettings(right_edit=0.6, broken_edit=0.0, untested_finish=0.0, give_up=0.1, invalid_call=0.0)


Played = tuple[list[dict[str, Any]], list[float]]
"""Messages, and the loss weight of each reply."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/bench-foreign/base"), help="runs of the laptop recipe")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-foreign"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100, help="steps of RL; default: %(default)s")
    parser.add_argument("--demonstrations", type=int, default=66, help="number that are played; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=4, help="how often SFT reads them; default: %(default)s")
    parser.add_argument("--add", action="store_true", help="keep the other seeds of the result")
    parser.add_argument("--out", type=Path, default=RESULTS / "foreign.json", help="the result; default: %(default)s")
    args = parser.parse_args()
    detail: dict[str, Any] = earlier_seeds(args.out) if args.add else {}
    for seed in args.seeds:
        policy, out = args.work / f"policy{seed}", args.work / f"seed{seed}"
        shown = args.work / f"shown{seed}.jsonl"
        base = pretrained(RunDirectory((args.base / f"seed{seed}").absolute()), seed)
        if not policy.exists():
            teach(base, policy, shown, args.demonstrations)
        run = RunDirectory(out.absolute())
        if run.stage_result(stage_of(AFTER)) is None:
            recipe = args.work / f"seed{seed}.toml"
            recipe.write_text(dump_recipe(recipe_of(base.recipe, policy, shown, args.steps, args.epochs)))
            run_recipe(recipe, out)
        result = learned(run)
        figures: dict[str, float | None] = {"steps": args.steps, **figures_of(result)}
        for unknown in ("later_attempts_before", "later_attempts_after", "later_if_fresh_after"):
            figures.pop(unknown, None)  # attempts are counted only for our own tools
        row = {"commit": commit(), "minutes_by_stage": stage_minutes(run), **result.detail(), "figures": figures}
        detail = dict(sorted({**detail, f"seed {seed}": row}.items()))
        write_result("foreign", over_seeds([each["figures"] for each in detail.values()]), detail, args.out)


def pretrained(run: RunDirectory, seed: int) -> RunDirectory:
    """Run the stages of the laptop recipe up to pretraining that are not finished yet."""
    if not run.recipe.exists():
        run.root.mkdir(parents=True, exist_ok=True)
        run.recipe.write_text(dump_recipe(load_recipe("laptop", [f"seed={seed}"])))
    settle_key(load_recipe(run.recipe).grading, run.root)
    for stage in ("tasks", "corpus", "pretrain"):
        if not run.read_result_of(stage):
            print(f"{run.root}: {stage}", flush=True)
            threads = os.environ | threads_of(cores() if stage == "pretrain" else 1)
            subprocess.run([sys.executable, "-m", "woodshed.stages", stage, str(run.root)], check=True, env=threads)
    return run


def recipe_of(base: Path, policy: Path, shown: Path, steps: int, epochs: int) -> Recipe:
    """Return the laptop recipe of ``base`` with the agent as harness, the policy made by ``teach``, and the
    conversations ``shown``."""
    laptop = load_recipe(base).model_dump()
    limits = {"turns": 12, "turn_tokens": 80, "sampled_tokens": 640, "context_tokens": 1280, "wall_seconds": 600.0}
    return Recipe.model_validate(
        laptop
        | {
            "name": "foreign",
            "policy": laptop["policy"] | {"source": str(policy.absolute())},
            "tasks": {"main": "synthetic", "synthetic": laptop["tasks"]["synthetic"] | {"sft": 0}},
            "learn": {
                "demonstrations": {"episodes": 0, "conversations": (str(shown.absolute()),)},
                "sft": laptop["learn"]["sft"] | {"max_tokens": limits["context_tokens"], "epochs": epochs},
                "solved": {"after_rl": True},
            },
            "harness": {"program": PROGRAM, "limits": limits},
            "rl": laptop["rl"] | {"steps": steps, "groups_per_step": 8, "concurrency": 16, "rewards": {}},
            "evaluate": {
                "tasks": 128,
                "samples": 4,
                "temperatures": (0.3, 0.6),
                "dev_tasks": 64,
                "dev_samples": 1,
                "concurrency": 16,
            },
        }
    )


def teach(base: RunDirectory, out: Path, shown: Path, episodes: int) -> None:
    """Show the pretrained policy of ``base`` text with the agent's shell, and save it in the folder ``out``; write the
    demonstrations to the file ``shown``."""
    recipe = load_recipe(base.recipe)
    tasks = load_split(base, "synthetic", "sft")
    policy = load_policy(base.policy("pretrain"))
    played = asyncio.run(demonstrations(recipe, tasks, episodes))
    print(f"{len(played)} of {episodes} demonstrations end on a passing test", flush=True)
    for number in sorted(played, key=lambda number: len(played[number][1]))[-CHECKED:]:
        check(tasks[number % len(tasks)], played[number][0], policy)
    again = recipe.learn.pretrain
    train_on(
        policy.decoder,
        text(recipe, policy),
        batch_tokens=again.batch_tokens,
        epochs=1,
        seed=recipe.seed + 1,
        matrix_lr=again.matrix_lr / 2,
        other_lr=again.other_lr / 2,
        floor=again.final_lr,
        metrics=out.parent / f"{out.name}-text.jsonl",
        checkpoints=out.parent / f"{out.name}-text-checkpoints",
        progress=lambda done, total, loss: print(f"text {done}/{total}, loss {loss:.3f}", flush=True),
        progress_seconds=20.0,
    )
    lines = []
    for messages, weights in played.values():
        each = iter(weights)
        weighted = [m | {"weight": next(each)} if m["role"] == "assistant" else m for m in messages]
        lines.append(json.dumps({"messages": weighted, "tools": [BASH]}, ensure_ascii=False) + "\n")
    write_whole(shown, "".join(lines))
    save_policy(policy, out)  # last: a policy that is there is whole, and so are its conversations


def text(recipe: Recipe, policy: Policy) -> list[Example]:
    """Return the laptop recipe's pretraining text with the shell as tool."""
    rng = random.Random(f"foreign-{recipe.seed}")
    settings = recipe.learn.corpus
    functions = draw_functions(settings.functions, recipe.seed, "sft")
    seen = conversations(rng, functions, list(library_functions(limit=2000)), settings, ("edit_line",))
    found: list[Example] = []
    while sum(len(each.tokens) for each in found) < TEXT_TOKENS:
        messages, replies = next(seen)
        if any(str(m.get("content")).startswith("error") for m in messages):
            continue  # shell commands do not check the syntax of an edit
        tokens, own = render_conversation(in_shell(messages), [BASH], policy.format, policy.tokenizer, replies)
        weights = np.where(own > 0, own, settings.context_weight).astype(np.float32)
        weights[0] = 0.0
        found.append(Example(tokens, weights))
    return found


def in_shell(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Translate a conversation of the laptop recipe's text into one of the agent."""
    found, action, file = [], Action(""), ""
    for message in messages:
        if calls := message.get("tool_calls"):
            function = calls[0]["function"]
            action = Action(function["name"], json.loads(function["arguments"]))
            file = action.arguments.get("path", file)
            found.append(bash_call(command_of(action, "python run_tests.py", file), calls[0]["id"]))
        elif action.name == "read_file":
            numbered = re.sub(r"(?m)^(\d+)", r"\1:", str(message["content"]).strip("\n"))
            found.append(message | {"content": numbered})
        else:
            found.append(message)
    return found


def check(task: Task, messages: Sequence[dict[str, Any]], policy: Policy) -> None:
    """Exit unless the agent itself, given the replies of a demonstration, sends the same tokens."""
    tokens, own = render_conversation(messages, [BASH], policy.format, policy.tokenizer)
    starts = np.flatnonzero((own > 0) & ~np.r_[False, own[:-1] > 0])
    replies = iter([tokens[start:][: np.argmin(np.r_[own[start:], 0.0])].tolist() for start in starts])
    engine = ScriptedEngine(lambda prompt: next(replies))
    app = build_app(engine, policy.format, policy.tokenizer, admin_key=ADMIN)
    with serve_app(app) as url:
        done = asyncio.run(play(task, layer_store(), url, HarnessSettings(program=PROGRAM), limits=Limits()))
    shown = [segment.tokens.tolist() for segment in done.segments]
    if shown != [tokens.tolist()]:
        raise SystemExit(
            f"{task.name}: the agent sent\n{[policy.tokenizer.decode(each) for each in shown]}\n"
            f"and the demonstration is\n{policy.tokenizer.decode(tokens.tolist())}\n{done.error}"
        )


async def demonstrations(recipe: Recipe, tasks: Sequence[Task], episodes: int) -> dict[int, Played]:
    """Play demonstrations; return by number those whose last edit was followed by a passing test, as the agent would
    send them."""
    backend, layers = backend_of(recipe.sandbox), layer_store()
    slots = asyncio.Semaphore(8)
    found: dict[int, Played] = {}

    async def one(number: int, task: Task) -> None:
        async with slots:
            box = await create_box(backend, agent_box_spec(task, layers, limits=Limits()), task.info.start)
            try:
                rng = random.Random(f"foreign-{recipe.seed}-{number}")
                messages: list[dict[str, Any]] = [
                    {"role": "system", "content": "-"},
                    {"role": "user", "content": task.instruction},
                ]
                weights: list[float] = []
                script = shell_script(task, rng)
                command, weight = next(script)
                while True:
                    messages.append(bash_call(command, f"c{len(weights)}"))
                    weights.append(weight)
                    if command == FINISH:
                        break
                    done = await box.exec(f"exec 2>&1\n{command}", cwd=task.info.workdir, timeout=10.0)
                    said = (done.stdout.decode("utf-8", "replace") or "ok")[:SHOWN].strip()
                    messages.append({"role": "tool", "tool_call_id": f"c{len(weights) - 1}", "content": said})
                    command, weight = script.send(said)
            finally:
                await box.close()
            tested = [m["content"] for m in messages if m["role"] == "tool"][-1]
            if suite_passed(tested):
                found[number] = messages, weights
            if (number + 1) % 100 == 0:
                print(f"demonstration {number + 1}/{episodes}", flush=True)

    try:
        await asyncio.gather(*(one(number, tasks[number % len(tasks)]) for number in range(episodes)))
    finally:
        await backend.close()
    return {number: found[number] for number in sorted(found)}


def shell_script(task: Task, rng: random.Random) -> Generator[tuple[str, float], str, None]:
    """Translate the laptop recipe's demonstration of a repair into commands: yields (command, loss weight) and is sent
    the command's output."""
    script, file = line_script(task, rng, SCRIPTS), ""
    action = next(script)
    while True:
        file = action.arguments.get("path", file)
        said = yield command_of(action, task.info.test_command, file), action.weight
        action = script.send(said)


def command_of(action: Action, test_command: str, file: str) -> str:
    """Return the shell command equivalent to a call of our own tools. ``file``: the file named last."""
    if action.name == "run_tests":
        return test_command
    if action.name == "read_file":
        return f"grep -n . {file}"
    if action.name == "edit_line":
        text = action.arguments["text"].replace("\\", "\\\\")
        script = f"{action.arguments['line']}c\\{text}".replace("'", "'\\''")
        # The file comes first, as in our own tools' verbs: after the text, a tiny policy names a wrong file.
        return f"sed -i.bak {file} -e '{script}'"
    return {"undo": f"mv {file}.bak {file}", "finish": FINISH}[action.name]


def bash_call(command: str, name: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command}, ensure_ascii=False)}
    call = {"id": name, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


if __name__ == "__main__":
    main()
