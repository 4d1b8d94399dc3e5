"""An episode that is continued from its record: what is repeated, what is asked, and what counts as different."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from woodshed.harness.endpoint import HttpEndpoint, pooled_client
from woodshed.harness.episode import Episode
from woodshed.harness.loop import run_episode
from woodshed.harness.replay import Replay, ReplayDiverged
from woodshed.harness.settings import HarnessSettings, LimitSettings, SummarySettings

from .conftest import Script, Step, call, say, serve
from .folder_box import FolderBox

SETTINGS = HarnessSettings(summary=SummarySettings(trigger_tokens=50, max_tokens=99), limits=LimitSettings(turns=4))
FILES = {"ridge.py": b"def f(x):\n    return x\n"}
TIMED = {"command": "echo took 0.1$(date +%N) s; echo at 0x7f$(printf %06d $$)"}
RANDOM = {"command": "od -An -N8 -tx1 /dev/urandom"}


def play(*steps: Step, replay: Replay | None = None, settings: HarnessSettings = SETTINGS) -> tuple[Episode, Script]:
    """An episode in a box of its own, with a real HTTP client."""
    script, box = Script(steps), FolderBox(FILES)

    async def go() -> Episode:
        try:
            async with serve(script) as url, pooled_client() as client:
                return await run_episode("do it", box, HttpEndpoint(url, "k", "m", client), settings, replay=replay)
        finally:
            await box.close()

    return asyncio.run(go()), script


def beginning(episode: Episode, replies: int) -> Replay:
    places = [i for i, message in enumerate(episode.messages) if message["role"] == "assistant"]
    return Replay(
        episode.messages[: places[replies]], episode.replies[:replies], episode.replies[replies].asked_seconds
    )


def test_a_summary_is_repeated_too_and_limits_count_it() -> None:
    write = ("write_file", {"path": "a.py", "content": "A = 1\n"})
    steps: list[Any] = [
        call(("read_file", {"path": "ridge.py"}), prompt=40, sampled=10),
        say("<summary>f returns x</summary>", prompt=60, sampled=7),
        call(write, prompt=20, sampled=9),
        call(("finish", {}), prompt=30, sampled=3),
    ]
    parent, asked = play(*steps)
    assert (
        parent.status == "submitted"
        and parent.effort.summaries == 1
        and [r.context for r in parent.replies] == [0, 0, 1, 1]
    )
    again, script = play(
        call(("read_file", {"path": "a.py"}), prompt=30, sampled=4),
        call(("read_file", {"path": "a.py"}), prompt=36, sampled=4),
        replay=beginning(parent, 3),
    )
    assert script.requests[0]["messages"] == asked.requests[3]["messages"], "what the parent asked there"
    assert (again.status, again.effort.turns, again.effort.summaries) == ("limit", 4, 1), "two repeated turns count"
    assert len(script.requests) == 2 and "A = 1" in again.events[2].result
    assert again.effort.sampled_tokens == 10 + 7 + 9 + 4 + 4
    count = len(beginning(parent, 3).messages)
    assert again.messages[:count] == parent.messages[:count] and again.replies[:3] == parent.replies[:3]


def test_the_wall_limit_goes_on_where_the_recorded_episode_was() -> None:
    limits = LimitSettings(wall_seconds=900.0)
    settings, read = HarnessSettings(limits=limits), call(("read_file", {"path": "ridge.py"}))
    parent, _ = play(read, call(("run_command", {"command": "sleep 0.3"})), read, read, settings=settings)
    asked = [reply.asked_seconds for reply in parent.replies]
    assert asked == sorted(asked) and asked[0] >= 0 and asked[2] - asked[1] >= 0.3, "what a call takes is counted"
    half = replace(beginning(parent, 2), seconds=450.0)
    again, _ = play(read, call(("finish", {})), replay=half, settings=settings)
    assert again.status == "submitted" and again.replies[:2] == parent.replies[:2], "as they were recorded"
    assert 450 <= again.replies[2].asked_seconds <= again.replies[3].asked_seconds
    spent, _ = play(read, replay=replace(half, seconds=900.0), settings=settings)
    assert (spent.status, spent.error) == ("timeout", "wall limit during a reply")
    assert len(spent.replies) == 2 and len(spent.events) == 2


def test_durations_and_addresses_may_differ_and_the_policy_sees_the_recorded_ones() -> None:
    settings = HarnessSettings()
    parent, _ = play(call(("run_command", TIMED)), call(("finish", {})), settings=settings)
    again, script = play(call(("finish", {})), replay=beginning(parent, 1), settings=settings)
    recorded = parent.messages[-3]["content"]
    assert "took 0.1" in recorded and again.events[0].result != recorded, "the box was really asked again"
    assert again.messages[-3]["content"] == script.requests[0]["messages"][-1]["content"] == recorded


def test_anything_else_that_differs_is_refused() -> None:
    settings = HarnessSettings()
    parent, _ = play(call(("run_command", RANDOM)), call(("finish", {})), settings=settings)
    with pytest.raises(ReplayDiverged, match="before reply 2 a tool message changed"):
        play(call(("finish", {})), replay=beginning(parent, 1), settings=settings)


def test_an_episode_that_ends_within_the_beginning_is_refused() -> None:
    settings = HarnessSettings()
    steps = [call(("read_file", {"path": "ridge.py"}))] * 3
    parent, _ = play(*steps, call(("finish", {})), settings=settings)
    shorter = settings.model_copy(update={"limits": LimitSettings(turns=2)})
    with pytest.raises(ReplayDiverged, match="ended with limit at reply 2"):
        play(call(("finish", {})), replay=beginning(parent, 3), settings=shorter)
