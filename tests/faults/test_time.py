"""Whose time it is: what the endpoint loses by failing is taken from nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.folder_box import FolderBox
from woodshed.harness.endpoint import Reply
from woodshed.harness.errors import EndpointLost
from woodshed.harness.loop import run_episode
from woodshed.harness.settings import HarnessSettings, LimitSettings

WALL = 1.0


class Failing:
    """An endpoint that says it lost ``lost`` seconds with each reply, and gives its second one after the time is up;
    none where ``failing`` says why."""

    def __init__(self, lost: float, failing: str = "") -> None:
        self.lost_seconds, self.failing, self.lost, self.asked = 0.0, failing, lost, 0
        self.began = time.monotonic()

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        self.asked += 1
        if self.failing:
            await asyncio.sleep(3600)
        while self.asked > 1 and time.monotonic() < self.began + 2 * WALL:
            await asyncio.sleep(0.02)
        self.lost_seconds += self.lost
        return Reply(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "list_dir", "arguments": "{}"}}],
            }
        )


def episode(endpoint: Failing) -> tuple[str, int]:
    settings = HarnessSettings(limits=LimitSettings(wall_seconds=WALL, turns=3))
    done = asyncio.run(run_episode("task", FolderBox(), endpoint, settings))
    return done.status, done.effort.turns


def test_what_the_endpoint_loses_is_not_the_time_of_the_policy() -> None:
    assert episode(Failing(lost=1e6)) == ("limit", 3)
    assert episode(Failing(lost=0.0)) == ("timeout", 1), "a slow reply is"


def test_an_endpoint_that_fails_until_the_time_is_up_is_no_timeout_of_the_policy() -> None:
    with pytest.raises(EndpointLost, match="failed until the time was up: status 500"):
        episode(Failing(lost=0.0, failing="status 500"))
