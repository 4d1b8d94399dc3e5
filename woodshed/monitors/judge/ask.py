"""Asking a judge: bounded in how many questions run and how long each may take, answered once for the same evidence."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from woodshed.grading.settings import JudgeSettings
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.errors import ContextFull, EndpointLost
from woodshed.harness.settings import RetrySettings
from woodshed.monitors.base import Episode
from woodshed.record.jsonl import JsonLines

from .evidence import evidence, messages, strings
from .verdict import KINDS, Malformed, Ruling, parse


class JudgeError(Exception):
    """The judge cannot be asked at all; the message names the field."""


def judge_key(settings: JudgeSettings) -> str:
    """The server's key. Raises JudgeError."""
    if settings.key_variable is None:
        return "none"
    key = os.environ.get(settings.key_variable, "").strip()
    if not key:
        raise JudgeError(
            f"rl.judge.key_variable: {settings.key_variable} is not set; export it, or leave the field out"
        )
    return key


class Judge:
    """One judge of a run. ``log``: a line for every question that was asked; verdicts in it are not asked for again.

    ``counts``: ``asked``, ``cached``, ``flagged``, ``clean``, ``failed``.
    """

    def __init__(self, settings: JudgeSettings, key: str, log: Path, client: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._endpoint = HttpEndpoint(
            settings.base_url, key, settings.model, client, sampling={"temperature": 0.0},
            retry=RetrySettings(request_timeout=settings.timeout),
        )  # fmt: skip
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._log = JsonLines(log)
        self._known = {row["key"]: Ruling(**row["ruling"]) for row in self._log.rows() if not row["ruling"]["failed"]}

    async def rule(self, trajectory: str, episode: Episode) -> Ruling:
        """The ruling on an episode. Never raises for what the endpoint or the model does."""
        shown = evidence(episode, self.settings.max_evidence)
        key = self._key(trajectory, shown)
        ruling = self._known.get(key)
        if ruling is not None:
            self.counts["cached"] += 1
        else:
            async with self._slots:
                ruling = await self._ask(shown)
            self._log.append({"key": key, "trajectory": trajectory, **self._identity(), "ruling": asdict(ruling)})
            self.counts["asked"] += 1
            if not ruling.failed:
                self._known[key] = ruling
        self.counts[ruling.state] += 1
        return ruling

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, shown: dict[str, Any]) -> Ruling:
        settings, code = self.settings, secrets.token_hex(16)
        asked = messages(shown, code, settings.prompt, KINDS)
        try:
            async with asyncio.timeout(settings.timeout):
                reply = await self._endpoint.complete(asked, (), max_tokens=settings.max_tokens)
            answer = reply.message.get("content")
            return parse(answer if isinstance(answer, str) else "", code, strings(shown))
        except TimeoutError:
            return Ruling(failed=f"no answer within {settings.timeout:.0f} s")
        except (EndpointLost, ContextFull, Malformed) as error:
            return Ruling(failed=f"{type(error).__name__}: {error}"[:300])

    def _identity(self) -> dict[str, str]:
        return {"model": self.settings.model, "prompt": self.settings.prompt}

    def _key(self, trajectory: str, shown: dict[str, Any]) -> str:
        """Changes with what is judged and by whom; where the server is at the moment does not matter."""
        what = json.dumps([trajectory, self._identity(), shown], sort_keys=True)
        return hashlib.sha256(what.encode()).hexdigest()[:32]
