"""Client of an engine in another process; implements the engine protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import httpx

from woodshed.engine.protocol import (
    Completion,
    EngineClosed,
    EngineError,
    EngineLost,
    EngineUnfit,
    OnReport,
    OnToken,
    Sampling,
    TokenReport,
)

from . import wire
from .stream import StreamedResponse

PROBE_SECONDS = 5.0

T = TypeVar("T")


class RemoteEngine:
    """Client of ``woodshed.engine.remote.service``; belongs to one event loop.

    ``url`` is the server's root, ``key`` its admin key. ``version`` and ``stats`` are as of the last response;
    ``refresh`` updates them. Clients have separate sessions, also under the same names.
    """

    def __init__(self, url: str, key: str, *, silence_seconds: float = 20.0) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"engine address {url!r}: must begin with http:// or https://")
        self._key = key
        self._silence = silence_seconds
        self._client = httpx.AsyncClient(
            timeout=PROBE_SECONDS,
            trust_env=False,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(keepalive_expiry=4.0),
        )
        self._name = secrets.token_hex(4)
        self._stats: dict[str, Any] = {}
        self._version = -1
        self._names: dict[str, str] = {}
        """The engine's name of every session that was used since its last release. A release may reach the engine after
        a later request of the session, and must not cancel it, so no name is used again."""
        self._lives = itertools.count()
        self._released: list[str] = []
        self._releasing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def version(self) -> int:
        """Newest version that the engine is known to have; -1 before the first response."""
        return self._version

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
        Cancelling stops the engine's work.

        Without ``live``, tokens may arrive in larger pieces, which costs less. An engine whose weights are older than
        version ``least`` refuses with EngineClosed.

        Raises EngineLost if the connection breaks or nothing arrives for ``silence_seconds``; ``on_token`` has then
        received the tokens that arrived before.
        """
        if self._closed:
            raise EngineClosed("this client of an engine is closed")
        own = None
        if session is not None:
            own = self._names.setdefault(session, f"{self._name}.{session}-{next(self._lives)}")
        name = secrets.token_hex(12)
        stopping: asyncio.Task[None] | None = None
        body = wire.encode_ask(tokens, sampling, own, live=live and on_token is not None, least=least, name=name)
        answer = StreamedResponse(f"{self.url}/generate", self._key, body, self._silence)
        frames, refusal = wire.Frames(), bytearray()
        sampled: wire.Sampled = ([], [], [])
        reports: list[TokenReport] = []
        async with aclosing(answer.parts()) as parts:
            async for part in parts:
                if answer.status != 200:
                    refusal += part
                    continue
                for kind, payload in self._read(frames.feed, part):
                    if kind == wire.REPORTS:
                        reports += self._read(wire.decode_reports, payload)
                    elif kind == wire.TOKENS:
                        new = self._read(wire.decode_tokens, payload)
                        of_new: Sequence[TokenReport] = ()
                        if sampling.with_reports:
                            of_new = self._read(_reports_of, reports, len(sampled[0]), len(new[0]))
                        enough = self._take(new, sampled, on_token=on_token, reports=of_new, on_report=on_report)
                        if enough and (stopping is None or stopping.done()):
                            stopping = asyncio.ensure_future(self._stop(name))
                    elif kind == wire.ERROR:
                        raise wire.failure(self._read(json.loads, payload))
                    elif kind == wire.END:
                        return self._read(wire.decode_end, payload, sampled, reports if sampling.with_reports else None)
        if answer.status == 200:
            raise EngineLost(f"engine {self.url}: the reply has no END frame")
        raise _refused(self.url, answer.status, bytes(refusal))

    def grammars_refused(self) -> str | None:
        """Return None: the server itself refuses requests with a grammar if it does not support them."""
        return None

    def kept_sets_refused(self) -> str | None:
        """Return None: an engine server runs a ``LocalEngine``, which reports kept sets."""
        return None

    def release(self, session: str) -> None:
        """Have the engine forget a session, in the background."""
        name = self._names.pop(session, None)
        if self._closed or name is None:
            return
        self._released.append(name)
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.ensure_future(self._release())

    def stats(self) -> dict[str, Any]:
        return dict(self._stats)

    async def refresh(self) -> dict[str, Any]:
        """Fetch the engine's ``stats``. Raises EngineError (EngineLost if it does not answer)."""
        self._stats = await self._call("GET", "/stats")
        self._version = int(self._stats["version"])
        return self.stats()

    async def follow(self, version: int, *, timeout: float = 300.0) -> int:
        """Wait until the engine has at least ``version`` of its weight chain. Raises EngineError."""
        answer = await self._call("POST", "/weights", {"version": version}, timeout=timeout)
        self._version = max(self._version, int(answer["version"]))
        return self._version

    async def close(self) -> None:
        self._closed = True
        if self._releasing is not None:
            self._releasing.cancel()
        await self._client.aclose()

    def _read(self, decode: Callable[..., T], *data: Any) -> T:
        """Decode ``data`` that the server sent; an invalid message becomes EngineLost."""
        try:
            return decode(*data)
        except ValueError as error:
            raise EngineLost(f"engine {self.url}: {error}") from None

    def _take(
        self,
        new: wire.Sampled,
        sampled: wire.Sampled,
        *,
        on_token: OnToken | None,
        reports: Sequence[TokenReport],
        on_report: OnReport | None,
    ) -> bool:
        """Append new tokens and pass them on; return True if ``on_token`` ends the completion. ``reports`` are those of
        the new tokens, if requested."""
        sampled[0].extend(new[0])
        sampled[1].extend(new[1])
        sampled[2].extend(new[2])
        self._version = max(self._version, new[2][-1])
        enough = False
        try:
            for i, token in enumerate(zip(*new)):
                if reports and on_report is not None:
                    on_report(reports[i])
                if on_token is not None:
                    enough |= on_token(*token) is True
        except Exception as error:
            raise EngineError(f"on_token raised {error!r}") from error
        return enough

    async def _stop(self, name: str) -> None:
        with suppress(EngineError):  # the request ends with the engine, or the next token sends another stop
            await self._call("POST", "/stop", {"name": name})

    async def _release(self) -> None:
        while self._released:
            sessions, self._released = self._released, []
            with suppress(EngineError):  # the engine is gone, and its sessions with it
                await self._call("POST", "/release", {"sessions": sessions})

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float = PROBE_SECONDS
    ) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, self.url + path, json=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed in the meantime
            raise EngineLost(f"engine {self.url}: {type(error).__name__}: {error}") from None
        if not answer.is_success:
            raise _refused(self.url, answer.status_code, answer.content)
        return dict(answer.json())


def _refused(url: str, status: int, body: bytes) -> Exception:
    """Return the error for an unsuccessful response."""
    if status == 401:
        return EngineUnfit("it does not accept our admin key; give gateway and engine the same one")
    try:
        return wire.failure(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return EngineError(f"engine {url} answered {status}: {body[:200]!r}")


def _reports_of(reports: Sequence[TokenReport], start: int, count: int) -> Sequence[TokenReport]:
    """The reports of ``count`` tokens from ``start`` on. Raises ValueError if they did not arrive before the tokens."""
    if len(reports) != start + count:
        raise ValueError(f"{len(reports)} reports came before {start + count} tokens")
    return reports[start:]
