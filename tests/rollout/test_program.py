"""A program of others in the agent's place: in a real box, against a real gateway over HTTP, graded and recorded."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway.parts import HERMES, ScriptedEngine
from grading import toy
from programs import play, recorded_as_sampled, served

from woodshed.engine.settings import Truncation
from woodshed.harness.settings import HarnessSettings, LimitSettings, ProgramSettings
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.agent import ProgramFailed
from woodshed.rollout.failures import RESUMED
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Limits
from woodshed.stages.programs import program_layers

AGENT = Path(__file__).parent.parent / "program_agent.py"
MEND = "sed -i 's/width + height/width * height/' shapes/measure.py"


def bash(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<think>\nLook.\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>"


@dataclass
class Place:
    engine: ScriptedEngine
    run: Callable[..., Trajectory]
    egress_log: Path


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, LayerStore]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    root = tmp_path_factory.mktemp("program")
    layers = LayerStore(root / "layers")
    return toy.toy_task(root / "toy", toy.pytest_layer(layers)), layers


WHOLE = Truncation()


@pytest.fixture
def place(task: tuple[Task, LayerStore], tmp_path: Path) -> Iterator[Place]:
    engine = ScriptedEngine(lambda _: [], context=4096)
    folder = tmp_path / "agent"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(AGENT, folder / "bin/tiny-agent")
    (folder / "bin/tiny-agent").chmod(0o755)
    with served(engine) as url:

        def run(
            command: str,
            *replies: str,
            temperature: float = 1.0,
            truncation: Truncation = WHOLE,
            **limits: float,
        ) -> Trajectory:
            said = iter(replies)
            engine.say = lambda _: HERMES.encode(next(said), allow_special=True)
            program = ProgramSettings(command=command, folder=folder)
            harness = HarnessSettings(program=program, limits=LimitSettings(**{"wall_seconds": 60.0, **limits}))
            return asyncio.run(
                play(
                    *task,
                    url,
                    harness,
                    limits=Limits(memory=1 << 30, disk=64 << 20),
                    temperature=temperature,
                    truncation=truncation,
                    egress_log=tmp_path / "egress.jsonl",
                )
            )

        yield Place(engine, run, tmp_path / "egress.jsonl")


def test_a_program_samples_with_the_truncation_of_the_recipe(place: Place) -> None:
    cut = Truncation(top_p=0.9, top_k=40)
    place.run("tiny-agent", "Nothing to do.<|im_end|>", truncation=cut)
    assert [(s.temperature, s.top_p, s.top_k, s.min_p) for s in place.engine.samplings] == [(1.0, 0.9, 40, 0.0)]


def test_what_it_does_is_recorded_token_by_token_and_graded(place: Place) -> None:
    done = place.run("tiny-agent", bash("cat shapes/measure.py; echo $PWD"), bash(MEND), "Mended.<|im_end|>")
    assert (done.status, done.error) == ("submitted", "")
    assert done.outcome is not None and done.outcome.resolved and done.rewards == {"outcome": 1.0}
    (segment,) = done.segments
    asked = place.engine.calls
    assert len(asked) == 3 and done.prefix_breaks == 0
    sampled = [token for _, _, completion in asked for token in completion.tokens]
    assert segment.tokens[segment.sampled].tolist() == sampled
    assert np.allclose(segment.logprobs[segment.sampled], [x for _, _, c in asked for x in c.logprobs])
    # Whatever the program asks for: the policy itself, and seeds of the turns that come from this rollout's.
    assert {s.temperature for s in place.engine.samplings} == {1.0}
    assert len({s.seed for s in place.engine.samplings} - {None}) == 3
    assert [m["role"] for m in done.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert done.messages[0]["content"] == "area of a rectangle is wrong"
    assert [(e.turn, e.name, (e.arguments or {})["command"]) for e in done.events][1] == (2, "bash", MEND)
    assert "def area" in done.events[0].result and done.events[0].result.endswith("/workspace\n")
    effort = done.effort
    assert (effort.turns, effort.tool_calls, effort.invalid_calls) == (3, 2, 0)
    assert effort.prompt_tokens + effort.sampled_tokens + effort.tool_output_tokens == len(segment)
    assert (
        effort.sampled_tokens
        == len(sampled)
        == effort.thinking_tokens + (effort.tool_call_tokens + effort.final_message_tokens)
    )
    assert effort.thinking_tokens > 0 and effort.final_message_tokens > 0


def test_two_conversations_are_two_segments(place: Place) -> None:
    done = place.run("tiny-agent 2", bash("ls"), "Stuck.<|im_end|>", bash(MEND), "Mended.<|im_end|>")
    assert len(done.segments) == 2 and done.outcome is not None and done.outcome.resolved
    assert recorded_as_sampled(place.engine, done)
    first = done.segments[0]
    first.tokens[first.sampled] = first.tokens[first.sampled][::-1]
    assert not recorded_as_sampled(place.engine, done), "the same tokens in another order are not what was sampled"
    assert done.effort.turns == 4 and [e.turn for e in done.events] == [1, 3]
    assert done.effort.prompt_tokens + done.effort.sampled_tokens + done.effort.tool_output_tokens == sum(
        map(len, done.segments)
    )


class Stalling(ScriptedEngine):
    """Says ``texts``; the third reply is never ready while ``stall``."""

    def __init__(self, *texts: str) -> None:
        said = iter(texts)
        super().__init__(lambda _: HERMES.encode(next(said), allow_special=True), context=4096)
        self.stall, self.reached = True, threading.Event()

    async def generate(self, *args: Any, **options: Any) -> Any:
        if self.stall and len(self.calls) == 2:
            self.reached.set()
            await asyncio.sleep(3600)
        return await super().generate(*args, **options)


def test_a_program_goes_on_after_the_process_of_the_rollout_died(task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    """It is run again as it is, in a new box, and never notices that its first replies are not new."""
    (tmp_path / "bin").mkdir()
    shutil.copy(AGENT, tmp_path / "bin/tiny-agent")
    (tmp_path / "bin/tiny-agent").chmod(0o755)
    harness = HarnessSettings(program=ProgramSettings(command="tiny-agent", folder=tmp_path))
    engine = Stalling(bash("date +%N > now; cat shapes/measure.py"), bash(MEND), bash("ls"), "Mended.<|im_end|>")
    limits = Limits(memory=1 << 30, disk=64 << 20)

    async def killed(url: str) -> None:
        running = asyncio.create_task(play(*task, url, harness, limits=limits))
        while not engine.reached.is_set() and not running.done():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    with served(engine) as url:
        asyncio.run(killed(url))
        engine.stall = False
        done = asyncio.run(play(*task, url, harness, limits=limits, resume=True))
    assert done.labels[RESUMED] == "1" and done.status == "submitted" and done.effort.turns == len(engine.calls) == 4
    assert done.outcome is not None and done.outcome.resolved and recorded_as_sampled(engine, done)


def test_limits_hold_although_the_program_has_none(place: Place) -> None:
    done = place.run("tiny-agent", *[bash("ls")] * 9, turns=3)
    assert done.status == "limit" and done.effort.turns == len(place.engine.calls) == 3
    assert done.outcome is not None and not done.outcome.resolved and "exit code 1" in done.error
    place.engine.calls.clear()
    one = len(HERMES.encode(bash("ls"), allow_special=True))
    done = place.run("tiny-agent", *[bash("ls")] * 9, sampled_tokens=2 * one)
    assert done.status == "limit" and done.effort.sampled_tokens == 2 * one
    done = place.run("tiny-agent", bash("ls"), "", turn_tokens=one - 5)
    assert done.status == "submitted" and done.effort.turns == 1 and done.effort.sampled_tokens == one - 5
    done = place.run("tiny-agent", *[bash("head -c 3000 /dev/zero | tr '\\0' x")] * 9, context_tokens=1200)
    assert done.status == "limit" and sum(map(len, done.segments)) <= 1200
    done = place.run("tiny-agent; sleep 60", bash(MEND), "Mended.<|im_end|>", wall_seconds=4.0)
    assert done.status == "timeout" and done.outcome is not None and done.outcome.resolved


def test_a_program_that_crashes_has_still_handed_in(place: Place) -> None:
    done = place.run("tiny-agent; echo broken >&2; exit 9", bash(MEND), "Mended.<|im_end|>")
    assert done.status == "submitted" and done.error.startswith("exit code 9") and "broken" in done.error
    assert done.outcome is not None and done.outcome.resolved and done.segments


def test_a_program_that_does_not_work_says_what_is_wrong(place: Place) -> None:
    with pytest.raises(ProgramFailed, match=r"no reply from the policy: exit code 127.*no-such-agent.*not found"):
        place.run("no-such-agent")
    with pytest.raises(ProgramFailed, match="no reply from the policy: exit code 0"):
        place.run("true")
    curl = """python3 -c 'import os, urllib.request as u
u.urlopen(u.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b"{}",
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}))'"""
    with pytest.raises(ProgramFailed, match=r"the gateway answered .*messages"):
        place.run(curl)


def test_the_box_reaches_the_gateway_and_nothing_else(place: Place) -> None:
    """A policy that runs commands has the key of its own trajectory, and that is all it has."""
    probe = """python3 - <<'END'
import os, socket, urllib.error, urllib.request as u
base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
for path in ("admin/trajectories", "admin/trajectories/t/finish", "admin/engine", "v1/feedback"):
    data = None if path.endswith(("trajectories", "engine")) else b"{}"
    try:
        u.urlopen(u.Request(f"{base}/{path}", data, key))
    except urllib.error.HTTPError as error:
        print(path, error.code)
for place in (("127.0.0.1", 22), ("127.0.0.1", 3128), ("192.0.2.1", 80)):
    try:
        print(socket.create_connection(place, 2))
    except OSError as error:
        print(place, type(error).__name__)
END"""
    done = place.run("tiny-agent", bash(probe), "Done.<|im_end|>")
    said = done.events[0].result
    assert said.count(" 401\n") == 3 and "feedback 403\n" in said and "<socket" not in said, said
    assert said.count("ConnectionRefusedError") == 2 and said.count("OSError") == 1
    routes = [json.loads(line) for line in place.egress_log.read_text().splitlines()]
    assert routes and {r["method"] for r in routes} == {"route"}


def test_wheels_are_put_into_the_box(place: Place, task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    wheel = tmp_path / "tinyagent-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tinyagent-1.0.dist-info"
        archive.writestr("tinyagent.py", "import sys\n\n\ndef main():\n    print('ran', *sys.argv[1:])\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyagent\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny = tinyagent:main\n")
        archive.writestr(f"{info}/RECORD", "")
    program = ProgramSettings(command="tiny", packages=(str(wheel),))
    (layer,) = program_layers(program, task[1])
    assert program_layers(program, task[1]) == (layer,)
    script = layer / "opt/harness/bin/tiny"
    assert script.read_text().startswith("#!/usr/bin/env python3\nimport sys\nsys.path.insert(0, '/opt/harness')\n")

    async def main() -> bytes:
        backend = open_backend()
        try:
            box = await backend.create(BoxSpec(layers=(layer,)))
            return (await box.exec("PATH=/opt/harness/bin:$PATH; tiny fast")).stdout
        finally:
            await backend.close()

    assert asyncio.run(main()) == b"ran fast\n"


@pytest.mark.parametrize(
    "text", ["x @ git+https://example.org/x", "https://example.org/x.tar.gz", "./x", "-e x", "x;y"]
)
def test_what_pip_would_build_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither NAME or NAME==VERSION nor a \.whl file"):
        ProgramSettings(command="x", packages=(text,))
    ProgramSettings(command="x", packages=("a", "a==1.0", "a[b,c]>=1,<2", "a ~= 3.1", "/place/a-1-py3-none-any.whl"))
