"""Episodes of the real harness behind the real gateway: with a policy that says what it is told, or a random one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.gateway.parts import ADMIN, TOKENIZERS, ScriptedEngine
from tests.harness.conftest import call
from tests.harness.folder_box import FolderBox
from woodshed.engine.local import LocalEngine
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.loop import registry_for, run_episode
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.policy.tokenizer import Tokenizer
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Fork, Trajectory
from woodshed.rl.hints.replies import places_of

FILES = {
    "ridge.py": b"def f(x):\n    return x\n",
    "tests/test_ridge.py": b"from ridge import f\n\n\ndef test_f():\n    assert f(1)\n",
}
HERMES = HarnessSettings(
    tools=("read_file", "edit_file", "run_command", "finish"), system_prompt="", plain_message_ends=True
)
TASK = Task(Path("nowhere"), "tests/toy", "repair ridge.py", TaskInfo(protected=("tests/**",)), {})
TASKS = {TASK.name: TASK}
Call = tuple[str, Any]


def said(reply: str | Sequence[Call], settings: HarnessSettings, format: str) -> list[int]:
    """Tokens that a policy samples to say a text or to make calls."""
    chat, tokenizer = get_format(format), TOKENIZERS[format]
    if isinstance(reply, str):
        return [*tokenizer.encode(reply, allow_special=True), tokenizer.special_id(chat.stop_tokens[0])]
    message = {"role": "assistant", **call(*reply)["message"]}
    pieces = chat.message(message, registry_for(settings).schemas())
    return tokenizer.encode_pieces(pieces)[len(tokenizer.encode_pieces(chat.generation())) :]


def scripted(
    *replies: str | Sequence[Call], settings: HarnessSettings = HERMES, format: str = "hermes", name: str = "t"
) -> Trajectory:
    """The episode of a policy that gives these replies, the last one again and again."""
    tokens = [said(reply, settings, format) for reply in replies]
    engine = ScriptedEngine(lambda _: tokens[min(len(engine.calls), len(tokens) - 1)])
    return episode(engine, format, TOKENIZERS[format], settings, name=name)


def forked(parent: Trajectory, replies: int) -> Trajectory:
    """A fork of an episode of one context, after its first ``replies`` replies, that goes on like its parent."""
    (whole,) = parent.segments
    tokens = places_of(parent)[replies].begin
    own = whole.sampled & (np.arange(len(whole)) >= tokens)
    segment = replace(
        whole,
        sampled=own,
        logprobs=np.where(own, whole.logprobs, 0).astype(np.float32),
        versions=np.where(own, whole.versions, -1).astype(np.int32),
    )
    return replace(parent, id=f"{parent.id}.f0", segments=[segment], fork=Fork(parent.id, replies, 0, tokens))


def episode(
    engine: Any,
    format: str,
    tokenizer: Tokenizer,
    settings: HarnessSettings,
    *,
    name: str = "t",
    reward: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
) -> Trajectory:
    return asyncio.run(_episode(engine, format, tokenizer, settings, name, reward, sampling))


async def _episode(
    engine: Any,
    format: str,
    tokenizer: Tokenizer,
    settings: HarnessSettings,
    name: str,
    reward: float,
    sampling: Mapping[str, Any] | None,
) -> Trajectory:
    app = build_app(engine, get_format(format), tokenizer, admin_key=ADMIN)
    box: Any = FolderBox(FILES)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        admin = GatewayAdmin("http://gateway", ADMIN, client=client)
        key = await admin.open(name, task=TASK.name, group="g")
        endpoint = HttpEndpoint("http://gateway", key, "m", client, sampling=sampling)
        try:
            work = await run_episode(TASK.instruction, box, endpoint, settings)
        finally:
            await box.close()
        finished = await admin.finish(name)
    if isinstance(engine, LocalEngine):
        await engine.close()
    return Trajectory(
        id=name,
        task=TASK.name,
        group="g",
        source="train",
        harness_hash="h",
        policy="p",
        status=work.status,
        segments=finished.segments,
        messages=work.messages,
        events=work.events,
        effort=work.effort,
        rewards={"outcome": reward},
        prefix_breaks=finished.prefix_breaks,
        ended=time.time(),
    )
