"""Episodes of synthetic tasks in one process: the real engine, harness, chat format and tests; no gateway, no store.

For research only. A box is a dictionary of files. The tests run in a sandbox once for each state of the files, and the
output is cached, so that episodes that reach the same state (forks, repeated edits) pay for it once.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import ContextLengthExceeded, Sampling
from woodshed.gateway.rendering import Rendering
from woodshed.harness.boxed import program
from woodshed.harness.endpoint import Reply
from woodshed.harness.episode import Episode
from woodshed.harness.errors import ContextFull
from woodshed.harness.loop import run_episode
from woodshed.harness.settings import HarnessSettings
from woodshed.record.segment import Segment
from woodshed.record.task import Task
from woodshed.record.trajectory import ToolEvent
from woodshed.rollout.attempts import attempt_rates
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.sandbox.faults import box_error
from woodshed.sandbox.protocol import Backend, BoxSpec, ExecResult

EDITS = ("edit_line", "edit_words", "edit_file")


class Tests:
    """Runs the tests of synthetic tasks and caches their output by the files that they depend on."""

    def __init__(self, backend: Backend, boxes: int = 4) -> None:
        self.backend, self.known = backend, dict[bytes, ExecResult]()
        self.asked = self.ran = 0
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._left = boxes

    async def run(self, files: Mapping[str, bytes], source: str) -> ExecResult:
        key = hashlib.sha256(repr((sorted(files.items()), source)).encode()).digest()
        self.asked += 1
        if key not in self.known:
            self.ran += 1
            if self._free.empty() and self._left:
                self._left -= 1
                self._free.put_nowait(await self.backend.create(BoxSpec()))
            box = await self._free.get()
            try:  # each state has its own folder, as earlier code may have left files behind
                folder = f"state{self.ran}"
                await box.put({f"{folder}/{name}": data for name, data in files.items()})
                self.known[key] = await box.exec_python(source, cwd=f"/workspace/{folder}", timeout=10.0)
            finally:
                self._free.put_nowait(box)
        return self.known[key]


class MemoryBox:
    """The part of ``Sandbox`` that the tools of a tiny policy use."""

    id = "memory"

    def __init__(self, files: Mapping[str, bytes], tests: Tests) -> None:
        self.files, self.tests = dict(files), tests

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        if path not in self.files:
            raise box_error(errno.ENOENT, path)
        return self.files[path][:max_bytes]

    async def put(self, files: Mapping[str, bytes]) -> None:
        self.files.update(files)

    async def exec_python(self, source: str, **_: Any) -> ExecResult:
        return await self.tests.run(self.files, source)


@dataclass(frozen=True)
class Turn:
    """One reply; its ``tokens`` are at ``[start, end)`` of the context."""

    start: int
    end: int
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    reply: Reply


@dataclass
class Played:
    """An episode. If it is a fork, its first ``forked`` turns are those of the episode number ``parent``."""

    task: Task
    episode: Episode
    segment: Segment
    turns: list[Turn]
    solved: bool
    forked: int = 0
    parent: int = -1
    reward: float = field(default=0.0)


class EngineEndpoint:
    """The chat server of one episode, token-exact like the gateway. The first replies may be given (for a fork)."""

    def __init__(
        self, engine: LocalEngine, rendering: Rendering, session: str, temperature: float, given: Sequence[Turn]
    ) -> None:
        self.engine, self.rendering, self.session, self.temperature = engine, rendering, session, temperature
        self.given, self.turns, self.tokens = list(given), list[Turn](), list[int]()
        self.read = 0
        self.lost_seconds, self.failing = 0.0, ""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        known = self.rendering.known(list(tools) if call_tools else [])
        parts = self.rendering.parts(messages[self.read :], self.read, known, opened=self.read > 0)
        self.tokens += [token for _, _, ids in parts for token in ids]
        self.read = len(messages) + 1
        if len(self.turns) < len(self.given):
            turn = self.given[len(self.turns)]
            if turn.start != len(self.tokens):
                raise RuntimeError("the beginning of a fork differs from what it was forked from")
        else:
            turn = await self._sample(known, max_tokens)
        self.tokens += turn.tokens
        self.turns.append(turn)
        return turn.reply

    async def _sample(self, tools: list[dict[str, Any]], max_tokens: int) -> Turn:
        start = len(self.tokens)
        sampling = Sampling(max_tokens=max_tokens, temperature=self.temperature, stop_ids=self.rendering.stop_ids)
        try:
            done = await self.engine.generate(self.tokens, sampling, session=self.session)
        except ContextLengthExceeded as error:
            raise ContextFull(str(error)) from None
        parsed = self.rendering.format.parse(self.rendering.text(done.tokens), tools)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
        if parsed.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json}}
                for c in parsed.tool_calls
            ]
        finish = "length" if done.stop_reason == "length" else "tool_calls" if parsed.tool_calls else "stop"
        reply = Reply(message, finish, start, len(done.tokens), 0, parsed.error or "")
        return Turn(start, start + len(done.tokens), done.tokens, done.logprobs, done.versions, reply)

    def segment(self) -> Segment:
        count = len(self.tokens)
        sampled, logprobs = np.zeros(count, np.bool_), np.zeros(count, np.float32)
        versions = np.full(count, -1, np.int32)
        for turn in self.turns:
            sampled[turn.start : turn.end] = True
            logprobs[turn.start : turn.end] = turn.logprobs
            versions[turn.start : turn.end] = turn.versions
        return Segment(np.array(self.tokens, np.int32), sampled, logprobs, versions)


class Player:
    """Plays episodes with one engine, harness and set of tests."""

    def __init__(self, engine: LocalEngine, rendering: Rendering, harness: HarnessSettings, tests: Tests) -> None:
        self.engine, self.rendering, self.harness, self.tests = engine, rendering, harness, tests
        self._names = itertools.count()

    async def play(self, task: Task, temperature: float, given: Sequence[Turn] = (), parent: int = -1) -> Played:
        """Play one episode, or a fork that begins with the turns ``given``. It is solved if all cases pass, including
        hidden ones."""
        files = task.workspace_files()
        box, session = MemoryBox(files, self.tests), f"episode-{next(self._names)}.0"
        endpoint = EngineEndpoint(self.engine, self.rendering, session, temperature, given)
        command = task.info.test_command
        episode = await run_episode(task.instruction, box, endpoint, self.harness, test_command=command)  # type: ignore[arg-type]
        self.engine.release(session)
        graded = {
            **box.files,
            "run_tests.py": files["run_tests.py"],
            "cases.json": task.test_files()["cases.harbor.json"],
        }
        done = await self.tests.run(graded, program("script", {"path": "run_tests.py"}))
        solved = suite_passed(done.stdout.decode(errors="replace"))
        return Played(task, episode, endpoint.segment(), endpoint.turns, solved, len(given), parent)

    async def play_all(self, plays: Sequence[tuple[Any, ...]], temperature: float, slots: int = 128) -> list[Played]:
        """Play episodes, given as (task), or forks, given as (task, turns, parent); return them in the order of
        ``plays``."""
        free = asyncio.Semaphore(slots)

        async def one(task: Task, given: Sequence[Turn] = (), parent: int = -1) -> Played:
            async with free:
                return await self.play(task, temperature, given, parent)

        return list(await asyncio.gather(*(one(*play) for play in plays)))


def wasted_edits(events: Sequence[ToolEvent]) -> list[tuple[ToolEvent, bool, bool]]:
    """Return (event, rejected, repeated) for every edit. ``rejected``: it failed; ``repeated``: an earlier edit made
    the same call."""
    found, tried = [], set[str]()
    for event in events:
        if event.name in EDITS:
            call = repr(event.arguments)
            found.append((event, event.error is not None, call in tried))
            tried.add(call)
    return found


def describe(played: Sequence[Played]) -> dict[str, float]:
    """Return means over episodes: share solved, share of tasks with a solved episode, share of first and later attempts
    that passed, share of rejected and repeated edits, effort."""
    first, later = attempt_rates([p.episode.events for p in played])
    edits = [edit for p in played for edit in wasted_edits(p.episode.events)]
    by_task: dict[str, list[bool]] = {}
    for p in played:
        by_task.setdefault(p.task.name, []).append(p.solved)
    return {
        "pass": float(np.mean([p.solved for p in played])),
        "best": float(np.mean([any(each) for each in by_task.values()])),
        "first": first,
        "later": later,
        "rejected": sum(rejected for _, rejected, _ in edits) / max(1, len(edits)),
        "repeated": sum(repeated for _, _, repeated in edits) / max(1, len(edits)),
        "submitted": float(np.mean([p.episode.status == "submitted" for p in played])),
        "turns": float(np.mean([p.episode.effort.turns for p in played])),
        "sampled": float(np.mean([p.episode.effort.sampled_tokens for p in played])),
    }


def load_tasks(folder: Path) -> list[Task]:
    return [Task.load(path.parent) for path in sorted(folder.glob("*/task.toml"))]
