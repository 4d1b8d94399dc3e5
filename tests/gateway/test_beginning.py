"""A trajectory that begins with another one's record: the same ids, context only, and kept through kill -9."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from woodshed.gateway.beginning import Beginning
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.record.segment import Segment

from .parts import ADMIN, HERMES, TOOLS, ScriptedEngine, replies
from .real import logprob_gap, server
from .site import USER, Site, run


async def parent(site: Site) -> tuple[list[Any], Segment]:
    """Messages and segment of the open trajectory after two turns."""
    messages: list[Any] = list(USER)
    for text in ("x", "y"):
        reply = (await site.chat(messages, tools=TOOLS)).json()["choices"][0]["message"]
        messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": text}]
    (segment,) = (await site.admin.finish("t")).segments
    return messages, segment


def beginning_of(messages: list[Any], segment: Segment) -> Beginning:
    """Up to the end of the first reply."""
    end = next(span.end for span in segment.spans if span.message == 1)
    spans = [span for span in segment.spans if span.end <= end]
    return Beginning(messages[:2], TOOLS, segment.tokens[:end].tolist(), spans)


def test_the_engine_gets_the_recorded_ids_as_context() -> None:
    async def test(site: Site) -> None:
        messages, segment = await parent(site)
        given = beginning_of(messages, segment)
        key = await site.admin.open("fork", beginning=given)
        await site.chat(messages[:3], key, tools=TOOLS)
        second = site.engine.calls[1][1]
        assert site.engine.calls[-1][1] == second, "what the parent's own second request was"
        (fork,) = (await site.admin.finish("fork")).segments
        shared = len(second)
        assert np.array_equal(fork.tokens[:shared], segment.tokens[:shared])
        assert not fork.sampled[:shared].any() and fork.sampled[shared:].all()
        assert (fork.versions[:shared] == -1).all() and fork.spans[: len(given.spans)] == given.spans

    run(ScriptedEngine(replies("read a.py<end>", "test<end>", "submit<end>")), test)


def test_a_reply_without_its_stop_token_gets_it_as_in_the_parent() -> None:
    """A reply that the length limit cut off: the next request of the parent adds the stop token, and so does a fork."""

    async def test(site: Site) -> None:
        messages, segment = await parent(site)
        end = len(site.engine.calls[0][1]) + len(site.engine.calls[0][2].tokens)
        assert segment.tokens[end - 1] not in site.app.state.gateway.trajectories.rendering.stop_ids
        full = [span for span in segment.spans if span.start < end]
        spans = [replace(span, end=min(span.end, end)) for span in full]
        given = Beginning(messages[:2], TOOLS, segment.tokens[:end].tolist(), spans)
        key = await site.admin.open("fork", beginning=given)
        await site.chat(messages[:3], key, tools=TOOLS)
        assert site.engine.calls[-1][1] == site.engine.calls[1][1]

    run(ScriptedEngine(replies("test", "test<end>", "submit<end>")), test)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tokens": [1 << 30]}, "beginning.tokens"),
        ({"tokens": []}, "beginning.tokens"),
        ({"messages": USER}, "beginning.messages"),
        ({"spans": []}, "beginning.spans"),
        ({"tools": ["x"]}, "beginning.tools"),
    ],
)
def test_a_beginning_that_does_not_fit_is_refused(change: dict[str, Any], error: str) -> None:
    async def test(site: Site) -> None:
        messages, segment = await parent(site)
        with pytest.raises(GatewayError, match=error.replace(".", r"\.")):
            await site.admin.open("fork", beginning=replace(beginning_of(messages, segment), **change))
        assert all(row["id"] != "fork" for row in await site.admin.list())

    run(ScriptedEngine(replies("read a.py<end>", "test<end>")), test)


@pytest.mark.slow
def test_a_killed_server_goes_on_with_the_fork(tmp_path: Path) -> None:
    """A real server of a real policy, killed between the opening of the fork and its first reply."""
    config = DecoderConfig(
        vocab_size=HERMES.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=48,
        max_positions=4096,
    )
    decoder = Decoder(config, seed=3)
    save_policy(Policy(decoder, HERMES, get_format("hermes"), config), tmp_path / "policy")

    async def ask(url: str, key: str, messages: list[Any]) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=url, timeout=300.0) as http:
            body = {"model": "m", "messages": messages, "tools": TOOLS}
            answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200, answer.text
            return dict(answer.json()["choices"][0]["message"])

    async def before(url: str) -> tuple[str, list[Any], Segment]:
        admin = GatewayAdmin(url, ADMIN)
        key, messages = await admin.open("t"), list(USER)
        messages.append(await ask(url, key, messages))
        messages.append({"role": "user", "content": "go on"})
        await ask(url, key, messages)
        (segment,) = (await admin.finish("t")).segments
        end = int(np.flatnonzero(np.diff(segment.sampled.astype(int)) == -1)[0]) + 1
        spans = [replace(span, end=min(span.end, end)) for span in segment.spans if span.start < end]
        given = Beginning(messages[:2], TOOLS, segment.tokens[:end].tolist(), spans)
        return await admin.open("fork", beginning=given), messages, segment

    async def after(url: str, key: str, messages: list[Any]) -> Segment:
        await ask(url, key, messages)
        (segment,) = (await GatewayAdmin(url, ADMIN).finish("fork")).segments
        return segment

    flags = ("--journal", str(tmp_path / "journal"))
    with server(tmp_path, *flags) as (url, process):
        key, messages, theirs = asyncio.run(before(url))
        process.kill()
    with server(tmp_path, *flags) as (url, _):
        ours = asyncio.run(after(url, key, messages))
    shared = int(np.flatnonzero(ours.sampled)[0])
    assert shared == int(np.flatnonzero(np.diff(theirs.sampled.astype(int)) == 1)[1]) + 1
    assert np.array_equal(ours.tokens[:shared], theirs.tokens[:shared])
    assert logprob_gap(decoder, ours) < 1e-4
