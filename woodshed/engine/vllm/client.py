"""Client of a vLLM server; implements the engine protocol."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

from woodshed.engine.protocol import (
    Completion,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineLost,
    OnReport,
    OnToken,
    Sampling,
    SamplingRefused,
    check_sampling,
    checked_prompt,
)
from woodshed.engine.remote.stream import StreamedResponse
from woodshed.engine.settings import EngineSettings

from . import wire
from .reply import Reply
from .server import Server, refused
from .update import ChainUpdates

GENERATE = "/inference/v1/generate"
_SESSIONS = 4096
"""Maximum number of sessions whose context is remembered, to request only missing routes."""


class VllmEngine:
    """Client of a vLLM server started by ``woodshed.engine.vllm.start`` or with the same flags. Belongs to one event
    loop; only one client may change a server's weights.

    ``vocabulary`` is the size of the policy's vocabulary, which vLLM does not report. ``initial`` is the version of the
    checkpoint that the server started with, ``chain`` the weight chain to follow, as a location that its workers can
    reach. Only these ``settings`` are used: ``context``, ``max_running``, ``max_waiting``, ``prefix_cache`` and
    ``swap`` (``recompute`` raises ValueError).
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        vocabulary: int,
        settings: EngineSettings | None = None,
        initial: int = 0,
        chain: str | None = None,
        silence_seconds: float = 20.0,
        poll_seconds: float = 1.0,
    ) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"engine address {url!r}: must begin with vllm+http:// or vllm+https://")
        self.settings, self.vocabulary = settings or EngineSettings(), vocabulary
        if self.settings.swap == "recompute":
            raise ValueError("engine.swap: vLLM cannot recompute running requests; choose keep or drain")
        self._key, self._silence, self._initial = key, silence_seconds, initial
        self._server = Server(self.url, key)
        self._config: dict[str, Any] | None = None
        self._load = {"running": 0, "waiting": 0}
        self._version = -1
        self._open: dict[str, tuple[Reply, str | None]] = {}
        self._contexts: OrderedDict[str, list[int]] = OrderedDict()
        self._aborting: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("generated_tokens", "prefilled_tokens", "reused_tokens"), 0)
        self._started = time.monotonic()
        self._closed = False
        self._updates = ChainUpdates(self, self._server, chain, poll_seconds=poll_seconds)

    @property
    def version(self) -> int:
        """Version of the server's weights; -1 before the first ``refresh``."""
        return self._version

    @property
    def context(self) -> int:
        """Maximum sequence length in tokens: the server's limit, or ``engine.context`` if that is less."""
        limit = int((self._config or {}).get("max_model_len", 1 << 30))
        return min(limit, self.settings.context or limit)

    async def generate(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        session: str | None = None,
        on_token: OnToken | None = None,
        on_report: OnReport | None = None,
        live: bool = True,
        least: int = 0,
    ) -> Completion:
        """Sample a completion, see ``Engine.generate``; ``on_token`` and ``on_report`` are called in the event loop.
        Cancelling stops the server's work.

        A seed reproduces a request, but a continued request gets other random numbers: see ``wire.seed_of``. Raises
        EngineLost if the connection breaks or the server is down.
        """
        if self._closed:
            raise EngineClosed("this client of vLLM is closed")
        if self._config is None:
            await self.refresh()
        if self._version < least:
            raise EngineClosed(f"vLLM has version {self._version} of the weights, not yet {least}")
        prompt = checked_prompt(tokens, self.vocabulary, self.context).tolist()
        check_sampling(sampling, self.vocabulary)
        self._check(sampling)
        if len(self._open) >= self.settings.max_running + self.settings.max_waiting:
            raise EngineBusy("too many requests are waiting for vLLM (engine.max_waiting); try again later")
        reply = Reply(self._version, self._initial, self.vocabulary, sampling, on_token=on_token, on_report=on_report)
        reply.unsure = self._updates.running
        name = secrets.token_hex(12)
        self._open[name] = (reply, session)
        try:
            done = await self._ask(name, prompt, sampling, reply, session)
        finally:
            del self._open[name]
        self._counts["generated_tokens"] += len(done.tokens)
        self._counts["prefilled_tokens"] += len(prompt) - done.cached_tokens
        self._counts["reused_tokens"] += done.cached_tokens
        if session is not None and done.routes is not None:
            self._contexts[session] = prompt + done.tokens
            self._contexts.move_to_end(session)
            if len(self._contexts) > _SESSIONS:
                self._contexts.popitem(last=False)
        return done

    def _check(self, sampling: Sampling) -> None:
        """Raise SamplingRefused for options that vLLM does not support, EngineError for a request that it cannot
        continue."""
        if sampling.grammar is not None:
            raise SamplingRefused("grammar", str(self.grammars_refused()))
        if sampling.raw_logprobs and not sampling.plain:
            reason = (
                "vLLM reports either raw log-probabilities or those of the sampling distribution; the latter are "
                "recorded"
            )
            raise SamplingRefused("raw_logprobs", reason)
        if sampling.drawn and (sampling.presence_penalty or sampling.frequency_penalty):
            raise EngineError(
                "vLLM would count sampled tokens as prompt, so it cannot continue with presence or frequency penalties"
            )

    def grammars_refused(self) -> str | None:
        """Return the reason: vLLM's structured outputs do not report which tokens they allow, so the trainer could not
        renormalise."""
        return "vLLM does not report which tokens it allows"

    def kept_sets_refused(self) -> str | None:
        """Return the reason: vLLM truncates inside its sampler and returns at most ``top_logprobs`` alternatives."""
        return "vLLM does not report which tokens top_p, top_k and min_p kept"

    def release(self, session: str) -> None:
        """Forget a session; its unfinished requests end with stop reason ``cancelled``."""
        self._contexts.pop(session, None)
        self._abort_soon([name for name, (_, of) in self._open.items() if of == session])

    def stats(self) -> dict[str, Any]:
        """Counters. ``running`` and ``waiting`` are the server's as of the last ``refresh``; token counts are those of
        this client."""
        return {
            "version": self._version,
            "uptime_seconds": time.monotonic() - self._started,
            "iteration_seconds": 0.0,
            "swaps": self._updates.swaps,
            "swap_seconds": self._updates.swap_seconds,
            "weights_stale": int(self._updates.problem is not None),
            "weights_problem": self._updates.problem,
            "vocabulary": self.vocabulary,
            "context": self.context,
            **self._load,
            **self._counts,
        }

    async def refresh(self) -> dict[str, Any]:
        """Fetch the server's status. Raises EngineError (EngineLost if it does not answer, EngineUnfit if it has wrong
        flags)."""
        if self._config is None:
            self._config = await self._server.config()
        self._load = await self._server.load()
        if not self._updates.running:
            swaps, version = self._updates.swaps, await self._label()
            if not self._updates.running and swaps == self._updates.swaps:  # else the answer may be outdated
                self._version = version
            await self._updates.begin()
        return self.stats()

    async def follow(self, version: int, *, timeout: float = 300.0) -> int:
        """Wait until the server has at least ``version`` of the weight chain. Raises EngineError."""
        return await self._updates.follow(version, timeout)

    async def close(self) -> None:
        self._closed = True
        await self._updates.close()
        for task in self._aborting:
            task.cancel()
        await self._server.close()

    # ---- for updates ----

    def weights_changing(self) -> None:
        """Called before weights change: open replies then wait for their end to learn which version sampled each
        token."""
        for reply, _ in self._open.values():
            reply.unsure = True

    async def weights_changed(self) -> None:
        """Called after weights have changed: fetch the new version."""
        self._version = await self._label()

    async def _label(self) -> int:
        try:
            return wire.version_of(await self._server.label(), self._initial)
        except ValueError as error:
            raise EngineError(f"vLLM at {self.url}: {error}") from None

    # ---- one request ----

    async def _ask(
        self, name: str, prompt: list[int], sampling: Sampling, reply: Reply, session: str | None
    ) -> Completion:
        body = wire.encode_ask(
            prompt,
            sampling,
            request=name,
            most=self.context - len(prompt),
            salt=self._salt(),
            routes_from=self._known(prompt, session),
        )
        answer = StreamedResponse(
            self.url + GENERATE, self._key, body, self._silence, kind="application/json", alive=self._server.health
        )
        events, refusal = wire.Events(), bytearray()
        try:
            async with aclosing(answer.parts()) as parts:
                async for part in parts:
                    if answer.status != 200:
                        refusal += part
                        continue
                    for event in events.feed(part):
                        if event is None:
                            return reply.end(len(prompt))
                        before = reply.enough
                        reply.take(event)
                        if reply.enough and not before:
                            self._abort_soon([name])
        except (ValueError, json.JSONDecodeError) as error:
            raise EngineLost(f"vLLM at {self.url}: {error}") from None
        if answer.status == 200:
            raise EngineLost(f"vLLM at {self.url}: the reply is incomplete")
        problem = refused(self.url, GENERATE, answer.status, bytes(refusal))
        raise EngineClosed(str(problem)) if answer.status >= 500 else problem

    def _salt(self) -> str | None:
        """Return the cache salt of a request: only requests with the same salt share keys and values."""
        if self.settings.prefix_cache == "keep":
            return None
        return f"version-{self._version}" if self.settings.prefix_cache == "salt" else secrets.token_hex(16)

    def _known(self, prompt: list[int], session: str | None) -> int:
        """Number of prompt tokens whose routes an earlier turn has returned."""
        before = self._contexts.get(session, []) if session is not None else []
        same = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b), min(len(before), len(prompt)))
        return max(0, min(same, len(before) - 1, len(prompt) - 1))

    def _abort_soon(self, names: list[str]) -> None:
        if names and not self._closed:
            task = asyncio.ensure_future(self._abort([f"generate-tokens-{name}" for name in names]))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort(self, requests: list[str]) -> None:
        with suppress(EngineError):  # the server is gone, and its requests with it
            await self._server.abort(requests)
