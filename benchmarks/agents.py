"""Agents of others, unmodified, in boxes, against the gateway: what they do is recorded token by token and graded.

    python benchmarks/agents.py [NAME ...]

``benchmarks/gateway.py`` puts what comes of it into its result. Each agent is fetched from its package index as
``harness.program`` does it (npm for those in Node) and mends the repository of the tests. A script plays the policy, so
that the figures are about the way through agent, gateway and grading and not about what a policy can do. Needs the
package indexes; the agents reach nothing but the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.harness.settings import HarnessSettings, LimitSettings, ProgramSettings
from woodshed.learn.boxes import layer_store
from woodshed.record.cache import cache_directory
from woodshed.record.trajectory import Trajectory
from woodshed.sandbox.protocol import Limits

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gateway.parts import HERMES, ScriptedEngine  # noqa: E402  (the scripted engine lives in the tests)
from grading import toy  # noqa: E402
from programs import play, recorded_as_sampled, served  # noqa: E402

MENDED = toy.SHAPES.replace("width + height", "width * height")
MEND = "sed -i 's/width + height/width * height/' shapes/measure.py"


@dataclass(frozen=True)
class Agent:
    """``npm``: package to install into the program's folder instead. ``replies``: what the policy says, a turn each."""

    name: str
    program: ProgramSettings
    replies: tuple[str, ...]
    npm: str = ""


def call(tool: str, **arguments: Any) -> str:
    text = json.dumps({"name": tool, "arguments": arguments})
    return f"<think>\nLook.\n</think>\n\nI do this.\n<tool_call>\n{text}\n</tool_call><|im_end|>"


AGENTS = (
    Agent(
        "mini-swe-agent",
        ProgramSettings(
            command='mini -y --exit-immediately -m openai/$WOODSHED_MODEL -t "$WOODSHED_TASK" -o /tmp/trajectory.json',
            packages=("mini-swe-agent==2.4.6", "mcp"),  # litellm imports mcp without asking for it
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
        npm="@qwen-code/qwen-code",
    ),
)  # fmt: skip


def installed(agent: Agent) -> ProgramSettings:
    """The program, with its Node package in a folder of the cache."""
    if not agent.npm:
        return agent.program
    folder = cache_directory() / "programs" / agent.npm.replace("/", "-").replace("@", "")
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), agent.npm]
        subprocess.run(command, check=True)
    return agent.program.model_copy(update={"folder": folder})


def episode(agent: Agent, program: ProgramSettings, url: str, root: Path) -> Trajectory:
    layers = layer_store()
    task = toy.toy_task(root / agent.name, toy.pytest_layer(layers))
    harness = HarnessSettings(program=program, limits=LimitSettings(turns=20, wall_seconds=240.0))
    return asyncio.run(play(task, layers, url, harness, limits=Limits(memory=None)))


def measure(agent: Agent, root: Path) -> dict[str, Any]:
    engine = ScriptedEngine(lambda _: [], context=1 << 20)
    said = iter(agent.replies)
    engine.say = lambda _: HERMES.encode(next(said, "Done.<|im_end|>"), allow_special=True)
    program = installed(agent)
    with served(engine) as url:
        started = time.monotonic()
        done = episode(agent, program, url, root)
    sampled = [token for _, _, completion in engine.calls for token in completion.tokens]
    recorded = [t for segment in done.segments for t in segment.tokens[segment.sampled].tolist()]
    return {
        "status": done.status, "error": done.error, "resolved": bool(done.outcome and done.outcome.resolved),
        "seconds": time.monotonic() - started, "turns": done.effort.turns, "calls": done.effort.tool_calls,
        "events": [event.name for event in done.events], "segments": [len(s) for s in done.segments],
        "sampled_tokens": len(sampled), "lost_tokens": len(sampled) - len(recorded),
        "exact": recorded_as_sampled(engine, done), "prefix_breaks": done.prefix_breaks,
    }  # fmt: skip


def measure_all(names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """What came of each agent's episode, by name."""
    found = {}
    for agent in AGENTS:
        if not names or agent.name in names:
            with tempfile.TemporaryDirectory() as place:
                found[agent.name] = measure(agent, Path(place))
            print(agent.name, json.dumps(found[agent.name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(agent.name for agent in AGENTS))
    found = measure_all(parser.parse_args().names)
    if failed := [name for name, row in found.items() if not (row["resolved"] and row["exact"])]:
        raise SystemExit(f"not resolved, or not exact: {', '.join(failed)}")


if __name__ == "__main__":
    main()
