"""Unmodified external agents in boxes, against the gateway: their episodes are recorded token by token, graded and
trained on.

    python benchmarks/agents.py [NAME ...]

``benchmarks/gateway.py`` includes this in its result. Each agent is fetched from its package index like for
``harness.program`` (npm for those in Node) and repairs the toy repository of the tests. A script plays the policy, so
that the figures measure the path through agent, gateway and grading and not the ability of a policy. Each agent plays
twice, once with the repair and once without, and the trainer takes steps on this group with a small policy. Needs the
package indexes; the agents can reach only the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from woodshed.harness.settings import HarnessSettings, LimitSettings, ProgramSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.record.cache import cache_directory
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits
from woodshed.stages.boxes import layer_store
from woodshed.train.settings import ImportanceSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gateway.parts import ScriptedEngine  # noqa: E402  (the scripted engine lives in the tests)
from grading import toy  # noqa: E402
from programs import play, recorded_as_sampled, served  # noqa: E402

TEXTS = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
TOKENIZER = Tokenizer(train_bpe(TEXTS, 4000, get_format("hermes").special_tokens))
"""Tokenizer trained on English and code, because an agent's instructions have up to 300,000 characters."""

MENDED = toy.SHAPES.replace("width + height", "width * height")
_CALLED = re.compile(r'"name": "(\w+)"')
MEND = "sed -i 's/width + height/width * height/' shapes/measure.py"


class Played(NamedTuple):
    engine: ScriptedEngine
    trajectory: Trajectory
    seconds: float


@dataclass(frozen=True)
class Agent:
    """An external agent. ``npm``: npm package to install into the program's folder. ``replies``: the policy's replies
    of the episode with the repair, one per turn; ``idle``: its reply in the episode without."""

    name: str
    program: ProgramSettings
    replies: tuple[str, ...]
    idle: str
    npm: str = ""


def call(tool: str, **arguments: Any) -> str:
    text = json.dumps({"name": tool, "arguments": arguments})
    return f"<think>\nLook.\n</think>\n\nI do this.\n<tool_call>\n{text}\n</tool_call><|im_end|>"


NODE = "/opt/harness/node_modules"
PI_MODELS = json.dumps(
    {
        "providers": {
            "woodshed": {
                "baseUrl": "URL", "api": "openai-completions", "apiKey": "OPENAI_API_KEY",
                "models": [{"id": "policy"}],
            }
        }
    }
)  # fmt: skip
OPENCODE = json.dumps(
    {
        "provider": {
            "woodshed": {
                "npm": "@ai-sdk/openai-compatible", "models": {"policy": {"name": "policy", "tool_call": True}},
                "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            }
        }
    }
)  # fmt: skip

AGENTS = (
    Agent(
        "mini-swe-agent",
        ProgramSettings(
            command='mini -y --exit-immediately -m openai/$WOODSHED_MODEL -t "$WOODSHED_TASK" -o /tmp/trajectory.json',
            packages=("mini-swe-agent==2.4.6", "mcp"),  # litellm imports mcp without requiring it
            env={
                "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
        ),
        (
            call("bash", command="cat shapes/measure.py"),
            call("bash", command=MEND),
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ),
    Agent(
        "aider",  # no tools: edits are text
        ProgramSettings(
            command='aider --model openai/$WOODSHED_MODEL --message "$WOODSHED_TASK" --yes-always --no-git '
            "--map-tokens 0 --edit-format whole --no-show-model-warnings --no-check-update --analytics-disable "
            "shapes/measure.py",
            packages=("aider-chat==0.86.2",),
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        ),
        (f"I multiply.\n\nshapes/measure.py\n```python\n{MENDED}```\n<|im_end|>",),
        "There is nothing to mend.<|im_end|>",
    ),
    Agent(
        "qwen-code",  # Node, streaming
        ProgramSettings(
            command='/opt/harness/node_modules/.bin/qwen --yolo --auth-type openai -p "$WOODSHED_TASK"',
            env={"OPENAI_MODEL": "policy", "HOME": "/tmp"},
        ),
        (
            call("read_file", file_path="/workspace/shapes/measure.py"),
            call("run_shell_command", command=MEND, is_background=False),
            "Mended.<|im_end|>",
        ),
        "There is nothing to mend.<|im_end|>",
        npm="@qwen-code/qwen-code",
    ),
    Agent(
        "claude-code",  # a binary; Anthropic Messages, streaming
        ProgramSettings(
            command=f'{NODE}/@anthropic-ai/claude-code-linux-x64/claude -p "$WOODSHED_TASK" '
            "--dangerously-skip-permissions --model $WOODSHED_MODEL",
            env={"HOME": "/tmp", "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        ),
        (
            call("Read", file_path="/workspace/shapes/measure.py"),
            call("Bash", command=MEND, description="Mend it"),
            "Mended.<|im_end|>",
        ),
        "There is nothing to mend.<|im_end|>",
        npm="@anthropic-ai/claude-code",
    ),
    Agent(
        "codex",  # a binary behind Node; Responses, streaming, tools in namespaces and of the vendor
        ProgramSettings(
            command=f"{NODE}/.bin/codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "
            "-c model_provider=woodshed -c 'model_providers.woodshed.name=\"woodshed\"' "
            "-c \"model_providers.woodshed.base_url='$OPENAI_BASE_URL'\" "
            "-c 'model_providers.woodshed.env_key=\"OPENAI_API_KEY\"' "
            "-c 'model_providers.woodshed.wire_api=\"responses\"' "
            '-m $WOODSHED_MODEL "$WOODSHED_TASK" < /dev/null',
            env={"HOME": "/tmp"},
        ),
        (
            call("exec_command", cmd="cat shapes/measure.py"),
            call("exec_command", cmd=MEND),
            "Mended.<|im_end|>",
        ),
        "There is nothing to mend.<|im_end|>",
        npm="@openai/codex",
    ),
    Agent(
        "pi",  # Node, Chat Completions, streaming
        ProgramSettings(
            command='mkdir -p /tmp/.pi/agent && echo "$PI_MODELS" | sed "s#URL#$OPENAI_BASE_URL#" '
            "> /tmp/.pi/agent/models.json && "
            f'{NODE}/.bin/pi --provider woodshed --model policy -p "$WOODSHED_TASK" < /dev/null',
            env={"HOME": "/tmp", "PI_OFFLINE": "1", "PI_MODELS": PI_MODELS},
        ),
        (
            call("read", path="shapes/measure.py"),
            call("bash", command=MEND),
            "Mended.<|im_end|>",
        ),
        "There is nothing to mend.<|im_end|>",
        npm="@mariozechner/pi-coding-agent",
    ),
    Agent(
        "opencode",  # a binary; Chat Completions, streaming; also asks for a title
        ProgramSettings(
            command=f'{NODE}/opencode-linux-x64/bin/opencode run -m woodshed/policy "$WOODSHED_TASK" < /dev/null',
            env={
                "HOME": "/tmp", "OPENCODE_CONFIG_CONTENT": OPENCODE, "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
            },
        ),
        (
            call("read", filePath="/workspace/shapes/measure.py"),
            call("bash", command=MEND, description="Mend it"),
            "Mended.<|im_end|>",
        ),
        "There is nothing to mend.<|im_end|>",
        npm="opencode-ai",
    ),
)  # fmt: skip


def installed(agent: Agent) -> ProgramSettings:
    """Return the program, with its Node package installed in a folder of the cache."""
    if not agent.npm:
        return agent.program
    folder = cache_directory() / "programs" / agent.npm.replace("/", "-").replace("@", "")
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), agent.npm]
        subprocess.run(command, check=True)
    return agent.program.model_copy(update={"folder": folder})


def episode(task: Task, layers: LayerStore, program: ProgramSettings, replies: Iterable[str], tool: str = "") -> Played:
    """Play one episode of a program with scripted replies. ``tool``: name of a tool that the agent offers, or ''."""
    engine = ScriptedEngine(lambda _: [], context=1 << 20)
    said = iter(replies)

    def say(prompt: list[int]) -> list[int]:
        """Answer a request. One that does not offer ``tool`` (for example for a title) gets a plain reply."""
        beside = tool and f'"{tool}"' not in TOKENIZER.decode(prompt)
        return TOKENIZER.encode("Mend it.<|im_end|>" if beside else next(said, "Done.<|im_end|>"), allow_special=True)

    engine.say = say
    harness = HarnessSettings(program=program, limits=LimitSettings(turns=20, wall_seconds=600.0))
    with served(engine, TOKENIZER) as url:
        started = time.monotonic()
        done = asyncio.run(play(task, layers, url, harness, limits=Limits(memory=None)))
        return Played(engine, done, time.monotonic() - started)


def train(group: Sequence[Trajectory]) -> dict[str, Any]:
    """Take three RL steps on one group. The loss is minus advantage times log-probability, so it falls if the rewarded
    episode becomes likelier relative to the other."""
    sampled = sum(int(segment.sampled.sum()) for done in group for segment in done.segments)
    batch, _ = build_batch(
        [group], load_algorithm("grpo", budget=sampled), step=1, batch_id="agents", generation_budget=sampled
    )
    config = DecoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        d_model=32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        d_ff=64,
        max_positions=1 << 17,
    )
    settings = TrainSettings(
        schedule=ScheduleSettings(warmup_steps=0),
        importance=ImportanceSettings(mode="off"),
        optimizer=OptimizerSettings(lr=1e-3),
    )
    trainer = Trainer(Decoder(config, seed=0), settings)
    steps = [trainer.step(batch) for _ in range(3)]
    return {
        "rewards": [done.reward for done in group],
        "sampled_tokens": sampled,
        "trained_tokens": int(steps[0]["trained_tokens"]),
        "loss": [step["loss_rl"] for step in steps],
    }


def measure(agent: Agent, root: Path) -> dict[str, Any]:
    layers = layer_store()
    task = toy.toy_task(root / agent.name, toy.pytest_layer(layers))
    program = installed(agent)
    found = _CALLED.search(agent.replies[0])
    tool = "" if found is None else found[1]
    engine, done, seconds = episode(task, layers, program, agent.replies, tool)
    idle = episode(task, layers, program, itertools.repeat(agent.idle), tool)
    trained = train([done, idle.trajectory])
    sampled = [token for _, _, completion in engine.calls for token in completion.tokens]
    recorded = [t for segment in done.segments for t in segment.tokens[segment.sampled].tolist()]
    return {
        "status": done.status,
        "error": done.error,
        "resolved": bool(done.outcome and done.outcome.resolved),
        "seconds": seconds,
        "turns": done.effort.turns,
        "calls": done.effort.tool_calls,
        "events": [event.name for event in done.events],
        "segments": [len(s) for s in done.segments],
        "sampled_tokens": len(sampled),
        "lost_tokens": len(sampled) - len(recorded),
        "exact": recorded_as_sampled(engine, done) and recorded_as_sampled(idle.engine, idle.trajectory),
        "prefix_breaks": done.prefix_breaks,
        "trained": trained,
        "trains": trains(trained),
    }


def trains(trained: dict[str, Any]) -> bool:
    """Return whether every sampled token was trained on, and the loss fell with rewards 1 and 0."""
    every = trained["trained_tokens"] == trained["sampled_tokens"]
    return bool(every and trained["rewards"] == [1.0, 0.0] and trained["loss"][0] > trained["loss"][-1])


def measure_all(names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the measurements of each agent, by name."""
    found = {}
    for agent in AGENTS:
        if not names or agent.name in names:
            with tempfile.TemporaryDirectory() as place:
                found[agent.name] = measure(agent, Path(place))
            print(agent.name, json.dumps(found[agent.name]), flush=True)
    return found


def measure_apart(at_once: int = 3) -> dict[str, dict[str, Any]]:
    """Like ``measure_all``, but with each agent in its own process, several at a time, since they mostly wait."""

    def one(agent: Agent) -> dict[str, Any]:
        done = subprocess.run([sys.executable, __file__, agent.name], stdout=subprocess.PIPE, text=True, check=False)
        said = [line for line in done.stdout.splitlines() if line.startswith(f"{agent.name} {{")]
        if not said:
            raise SystemExit(f"{agent.name} could not be measured")
        print(said[-1], flush=True)
        return dict(json.loads(said[-1].removeprefix(agent.name)))

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip([agent.name for agent in AGENTS], pool.map(one, AGENTS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(agent.name for agent in AGENTS))
    found = measure_all(parser.parse_args().names)
    if failed := [name for name, row in found.items() if not (row["resolved"] and row["exact"] and row["trains"])]:
        raise SystemExit(f"not resolved, not exact, or not trained on: {', '.join(failed)}")


if __name__ == "__main__":
    main()
