"""A client's connection to a box server: requests, detection of a lost host, and the lease that keeps boxes alive."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest.frames import FrameError, encode
from woodshed.sandbox.protocol import SandboxError, Unsupported

from . import wire
from .transfer import name_of, pack

_PIECE = 1 << 20


@asynccontextmanager
async def spooled(write: Callable[[BinaryIO], None]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Write a temporary file in a thread and provide its pieces, so that no layer is held in memory as a whole."""
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(write, file)
        file.seek(0)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece

        yield pieces()


CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 20.0
"""A host that does not answer for this long is lost: requests under way fail and are tried on another host."""
log = logging.getLogger(__name__)


class Host:
    """Client of the server at ``url`` with the admin key ``key``; belongs to the event loop that first calls ``open``.

    ``backend``: the backend that the server must have. ``egress`` gets every new line of the log of our boxes'
    requests. ``serving``: True if the server's last answer was good; otherwise ``why`` is the reason.
    """

    def __init__(
        self,
        url: str,
        key: str,
        backend: str,
        egress: Callable[[dict[str, Any]], None] | None,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}", wire.CLIENT: secrets.token_hex(16)}
        self._backend, self._egress, self._silence = backend, egress, silence
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Future[Any]] = set()
        self._sent: dict[str, asyncio.Task[None]] = {}
        self._have = 0
        self._heard = 0.0
        self._seconds = 60.0
        self.unclosed: set[str] = set()
        """Boxes whose closing did not reach the host, and tokens of abandoned requests for boxes; they are closed when
        the host answers again."""
        self.instance, self.max_body = "", 1 << 20
        self.capabilities: frozenset[str] = frozenset()
        self.living, self.processors, self.short = 0, 1, ""
        self.serving, self.why = True, ""

    async def open(self) -> None:
        """Begin the lease. Raises HostLost if the host does not answer, SandboxError if it is unsuitable."""
        async with self._opening:
            if self._renewal is None:
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
                timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
                self._client = httpx.AsyncClient(headers=self._headers, timeout=timeout, limits=limits, trust_env=False)
                try:
                    await self._renew()
                finally:
                    self._renewal = asyncio.create_task(self._keep_lease())
            elif not self.serving:
                raise wire.HostLost(f"box host {self.url}: {self.why}")

    async def ask(self, path: str, head: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """POST a frame. Raises HostLost, and what the host raised: OSError, SandboxError, ValueError.

        Cancelling the call cancels the work on the host too.
        """
        try:
            data = encode(head, body)
        except FrameError as error:
            raise box_error(errno.EFBIG, str(error)) from None
        if len(data) > self.max_body:
            raise box_error(
                errno.EFBIG,
                f"a request of {len(data)} bytes is larger than {self.url} takes (max_body, {self.max_body})",
            )
        answer = await self._request("POST", path, data)
        try:
            reply, rest = wire.decode(answer.content)
            self.living = int(reply["living"])
        except (ValueError, KeyError, TypeError) as error:
            raise wire.HostLost(f"box host {self.url}: its answer makes no sense: {error}") from None
        return reply, rest

    async def layer(self, folder: Path) -> str:
        """Send a layer to the host unless it has it; return its name there. Concurrent calls share one transfer."""
        name = await asyncio.to_thread(name_of, folder)
        task = self._sent.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._sent[name] = asyncio.create_task(self._send(folder, name))
        await asyncio.shield(task)
        return name

    async def close(self) -> None:
        """End the lease, and with it everything that was made on the host."""
        if self._renewal is not None:
            ending = [task for task in (self._renewal, self._closing) if task is not None]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            if self.serving:
                with contextlib.suppress(SandboxError, OSError, ValueError, KeyError, TypeError):
                    async with asyncio.timeout(CONNECT_SECONDS * 2):
                        reply, _ = await self.ask("/lease/end", {"have": self._have})
                        self._log(reply)
        self._lose(f"box host {self.url}: this client is closed")
        if self._client is not None:
            await self._client.aclose()

    # ---- the lease ----

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, self._silence)):
                reply, _ = await self.ask("/lease", {"have": self._have})
            if reply["backend"] != self._backend:
                raise SandboxError(
                    f"box host {self.url} makes {reply['backend']} boxes, and sandbox.backend makes {self._backend}: "
                    "start it with that --backend"
                )
            if reply["instance"] != self.instance:  # the first answer, or the server was started again
                self._lose(f"box host {self.url} was started again")
                self.instance, self._have = str(reply["instance"]), 0
                self._sent.clear()
                self.unclosed.clear()
            self.capabilities = frozenset(map(str, reply["capabilities"]))
            self.max_body, self._seconds = int(reply["max_body"]), float(reply["seconds"])
            self.processors, self.short = max(1, int(reply["processors"])), str(reply["short"])
            self._log(reply)
        except TimeoutError:
            raise self._away("it does not answer") from None
        except (KeyError, TypeError, ValueError) as error:
            raise self._away(f"its answer makes no sense: {error!r}") from None
        except SandboxError as error:
            self.serving, self.why = False, str(error)
            raise
        self.serving, self._heard = True, time.monotonic()

    async def _keep_lease(self) -> None:
        """Renew the lease for ever; fail the requests under way if the host stays silent."""
        while True:
            await asyncio.sleep(min(2.0, self._seconds / 4) if self.serving else 0.5)
            try:
                await self._renew()
            except (SandboxError, OSError, ValueError) as error:
                if time.monotonic() - self._heard > self._silence:
                    self._lose(str(error))
            else:
                if self.unclosed and (self._closing is None or self._closing.done()):
                    self._closing = asyncio.create_task(self._close_given_up())

    async def _close_given_up(self) -> None:
        """Close the boxes in ``unclosed``, beside the renewals: a box that takes long does not make the host silent."""
        for name in list(self.unclosed):
            with contextlib.suppress(SandboxError, OSError, ValueError):
                async with asyncio.timeout(self._silence):
                    await self.ask(f"/boxes/{quote(name, safe='')}/close", {})
                self.unclosed.discard(name)

    def _away(self, why: str) -> wire.HostLost:
        """Mark the host as unusable until it answers again."""
        if self.serving:
            log.warning("box host %s is away: %s", self.url, why)
        self.serving, self.why = False, why
        return wire.HostLost(f"box host {self.url}: {why}")

    def _lose(self, why: str) -> None:
        for request in list(self._under_way):
            request.cancel(why)

    def _log(self, reply: dict[str, Any]) -> None:
        for number, line in reply["egress"]:
            self._have = max(self._have, int(number))
            if self._egress is not None and isinstance(line, dict):
                self._egress({**line, "host": self.url})

    # ---- requests ----

    async def _request(self, method: str, path: str, data: Any) -> httpx.Response:
        if self._client is None:
            raise wire.HostLost(f"box host {self.url}: not connected")
        call = asyncio.ensure_future(self._client.request(method, self.url + path, content=data))
        if path != "/lease":
            self._under_way.add(call)
        try:
            answer = await call
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise wire.HostLost(str(error) or f"box host {self.url} is lost") from None
        except (httpx.HTTPError, RuntimeError, OSError) as error:  # RuntimeError: the client was closed meanwhile
            raise self._away(f"{type(error).__name__}: {error}") from None
        finally:
            self._under_way.discard(call)
        if answer.status_code != 200:
            raise refused(self.url, answer)
        return answer

    async def _send(self, folder: Path, name: str) -> None:
        try:
            await self._request("GET", f"/layers/{name}", b"")
            return
        except wire.HostLost:
            raise
        except SandboxError:
            pass  # the host does not have it
        async with spooled(lambda file: pack(folder, file)) as pieces:
            try:
                await self._request("PUT", f"/layers/{name}", pieces)
            except ValueError as error:
                raise SandboxError(str(error)) from None


def refused(url: str, answer: httpx.Response) -> Exception:
    """Return the exception for a response that is not 200."""
    if answer.status_code == 401:
        return Unsupported(f"box host {url} does not know our key: give both the same (sandbox.hosts_key_file)")
    try:
        return wire.failure(json.loads(answer.content)["error"])
    except (ValueError, KeyError, TypeError):
        return SandboxError(f"box host {url} answered {answer.status_code}: {answer.content[:200]!r}")
