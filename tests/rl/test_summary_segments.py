"""Nested self-summaries of a real policy, from the harness through the gateway to the weights of a batch."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest
from gateway.parts import ADMIN, HERMES, ScriptedEngine
from gateway.real import server
from grading import toy

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.segments_wire import Finished
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.loop import run_episode
from woodshed.harness.settings import REQUEST, HarnessSettings, LimitSettings, SummarySettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.observed import summary_tokens
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits
from woodshed.train.batch import TrainBatch

CONFIG = DecoderConfig(
    vocab_size=HERMES.vocab_size,
    d_model=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    d_ff=64,
    max_positions=8192,
)
HARNESS = HarnessSettings(
    tools=("read_file", "finish"),
    system_prompt="Repair it.",
    plain_message_ends=False,
    limits=LimitSettings(turns=8, turn_tokens=12, bad_turns=5),
    summary=SummarySettings(trigger_tokens=1, max_tokens=16, max_count=3),
)


@dataclass
class Played:
    group: list[Trajectory]
    exchanges: list[tuple[dict[str, Any], dict[str, Any]]]
    """(request, reply) of the first rollout."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Two rollouts of a policy with random weights, whose every reply makes the context too long."""
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    folder = tmp_path_factory.mktemp("summaries")
    save_policy(Policy(Decoder(CONFIG, seed=0), HERMES, get_format("hermes"), CONFIG), folder / "policy")
    layers = LayerStore(folder / "layers")
    task = toy.toy_task(folder / "toy", toy.pytest_layer(layers))
    exchanges: list[tuple[dict[str, Any], dict[str, Any]]] = []

    async def listen(response: httpx.Response) -> None:
        if response.url.path == "/v1/chat/completions":
            exchanges.append((json.loads(response.request.content), json.loads(await response.aread())))

    async def main(url: str) -> list[Trajectory]:
        backend = open_backend()
        async with httpx.AsyncClient(timeout=120, event_hooks={"response": [listen]}) as client:
            arena = Arena(
                backend=backend,
                layers=layers,
                admin=GatewayAdmin(url, ADMIN, client=client),
                base_url=url,
                agent=BuiltinAgent(HARNESS, client),
                policy="random",
                limits=Limits(memory=1 << 30, disk=64 << 20),
            )
            try:
                return [await rollout(arena, task, id=f"t{i}", group="g", source="train", seed=i) for i in range(2)]
            finally:
                await backend.close()

    with server(folder) as (url, _):
        group = [trajectory_from_bytes(trajectory_to_bytes(t)) for t in asyncio.run(main(url))]
    for trajectory in group:
        assert trajectory.status == "repeated_format_error" and trajectory.effort.summaries == 3, trajectory.error
    return Played(group, exchanges[: sum(m["role"] == "assistant" for m in group[0].messages)])


def batch_of(group: list[Trajectory], **options: Any) -> TrainBatch:
    """The batch in which the second rollout had reward 1 and the first none."""
    paid = [replace(t, rewards={"outcome": float(i)}) for i, t in enumerate(group)]
    algorithm = load_algorithm("mean_baseline", budget=64)
    return build_batch([paid], algorithm, step=1, batch_id="b", generation_budget=64, **options)[0]


def test_every_segment_is_trained_with_the_reward_of_the_end(played: Played) -> None:
    batch = batch_of(played.group)
    assert [t.id for t in played.group for _ in t.segments] == batch.trajectories and len(batch) == 8
    segments = [segment for t in played.group for segment in t.segments]
    for i, segment in enumerate(segments):
        advantage = -0.5 if batch.trajectories[i] == "t0" else 0.5
        weights = batch.weights["rl"][batch.offsets[i] : batch.offsets[i + 1]]
        assert (weights == np.where(segment.sampled, advantage, 0)).all()
        for span in segment.spans:
            if span.role != "assistant":
                assert not weights[span.start : span.end].any(), "requests, state blocks and tasks are only read"


def test_summaries_are_marked_where_they_were_sampled(played: Played) -> None:
    for trajectory in played.group:
        assert [segment for segment, _, _ in trajectory.summaries] == [0, 1, 2], "one in each context but the last"
        total = 0
        for number, start, end in trajectory.summaries:
            segment = trajectory.segments[number]
            assert segment.sampled[start:end].all() and end == len(segment)
            asked, said = segment.spans[-2:]
            assert asked.role == "user" and HERMES.decode(segment.tokens[asked.start : asked.end].tolist()).count(
                REQUEST
            )
            assert said.start < start < said.end, "the generation prompt is not sampled"
            total += end - start
        assert total == trajectory.effort.summary_tokens
        state = [s.tokens[: s.sampled.argmax()].tolist() for s in trajectory.segments[1:]]
        assert [f"Summaries so far: {i}" in HERMES.decode(ids) for i, ids in enumerate(state, 1)] == [True] * 3


def test_a_control_may_leave_summaries_untrained(played: Played) -> None:
    whole, masked = batch_of(played.group), batch_of(played.group, train_summaries=False, kl_beta=0.1)
    expected = whole.weights["rl"].copy()
    row = 0
    for trajectory in played.group:
        for number in range(len(trajectory.segments)):
            for _, start, end in (mark for mark in trajectory.summaries if mark[0] == number):
                expected[whole.offsets[row] + start : whole.offsets[row] + end] = 0
            row += 1
    assert (masked.weights["rl"] == expected).all() and (expected != whole.weights["rl"]).any()
    assert ((masked.weights["ref_kl"] != 0) == (expected != 0)).all()
    assert (masked.tokens == whole.tokens).all() and masked.denominators["rl"] == whole.denominators["rl"]


def test_a_summary_request_reuses_the_cache_of_its_context(played: Played) -> None:
    requests = [
        (request, reply["usage"]) for request, reply in played.exchanges if request.get("tool_choice") == "none"
    ]
    assert len(requests) == 3
    usages = [reply["usage"] for _, reply in played.exchanges]
    for request, usage in requests:
        assert request["messages"][-1] == {"role": "user", "content": REQUEST} and request["tools"]
        before = usages[usages.index(usage) - 1]
        held = before["prompt_tokens"] + before["completion_tokens"]
        # the last sampled token was never computed; all others were
        assert usage["prompt_tokens_details"]["cached_tokens"] >= held - 1
        assert usage["prompt_tokens"] > held


def test_scratch_thinking_is_trained_and_not_carried_over() -> None:
    """A scripted policy thinks before its summary: both are sampled, only the summary is in the next context."""

    def say(prompt: list[int]) -> list[int]:
        asked = HERMES.decode(prompt).rpartition("user\n")[2]
        text = "<think>\nthe scratch\n</think>\n\nin short" if REQUEST in asked else "nothing"
        return HERMES.encode(f"{text}<|im_end|>", allow_special=True)

    async def main() -> Finished:
        engine = ScriptedEngine(say, context=8192)
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            admin = GatewayAdmin("http://gateway", ADMIN, client=client)
            endpoint = HttpEndpoint("http://gateway", await admin.open("t"), "m", client)
            harness = HARNESS.model_copy(update={"summary": SummarySettings(trigger_tokens=1, max_count=1)})
            box: Any = None  # no reply calls a tool
            episode = await run_episode("repair it", box, endpoint, harness)
            assert episode.effort.summaries == 1 and episode.summary_replies == [1]
            return await admin.finish("t")

    finished = asyncio.run(main())
    ((number, start, end),) = summary_tokens(finished, [1])
    first, second = finished.segments
    assert number == 0 and first.sampled[start:end].all()
    assert HERMES.decode(first.tokens[start:end].tolist()).startswith("<think>\nthe scratch")
    carried = HERMES.decode(second.tokens.tolist())
    assert "Your summary of the work so far:\nin short" in carried and "the scratch" not in carried
