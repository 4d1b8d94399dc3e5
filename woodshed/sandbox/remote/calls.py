"""Handles one request to a box server. Plain ASGI, for speed: every command of a run is a request.

The key is checked before anything else is read. If a client hangs up, its command is cancelled.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from woodshed.cluster.service import AdminKey, bearer
from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest.frames import FrameError, encode
from woodshed.sandbox.protocol import SandboxError

from . import wire
from .leases import Lease, Leases

log = logging.getLogger(__name__)

Handler = Callable[[Lease, dict[str, str], dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes]]]
"""Takes the client's lease, the parameters of the path, and the request's head and body; returns the reply's."""


class TooLarge(Exception):
    """The body of a request is larger than this server accepts."""


class Call:
    """An ASGI application around a handler. ``lasting``: finish the work even if the client has hung up."""

    def __init__(
        self, handler: Handler, key: AdminKey, leases: Leases, *, max_body: int, lasting: bool = False
    ) -> None:
        self._handler, self._key, self._leases = handler, key, leases
        self._max_body, self._lasting = max_body, lasting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        client = headers.get(wire.CLIENT.encode(), b"").decode("latin-1")
        if not self._key.matches(bearer(headers.get(b"authorization"))):
            await refuse(send, 401, SandboxError("this route needs the host's admin key"))
            return
        try:
            if not client.isalnum() or not 16 <= len(client) <= 64:
                raise ValueError(f"the header {wire.CLIENT} must name the client with 16 to 64 letters and digits")
            body = await whole_body(headers, receive, self._max_body)
            if body is None:
                return
            head, rest = wire.decode(body)
        except TooLarge as error:
            await refuse(send, 413, SandboxError(str(error)))
            return
        except ValueError as error:
            await refuse(send, 400, error)
            return
        work = asyncio.ensure_future(self._handler(self._leases.of(client), scope["path_params"], head, rest))
        left = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self._lasting:
                work.cancel()
            await asyncio.wait((work,))
            if not left.done():
                await self._answer(work, send)
            elif not work.cancelled() and (problem := work.exception()) is not None:
                log.info("a request whose client is gone failed: %r", problem)
        finally:
            left.cancel()
            if not self._lasting:
                work.cancel()

    async def _answer(self, work: asyncio.Future[tuple[dict[str, Any], bytes]], send: Send) -> None:
        try:
            head, body = work.result()
            data = encode({**head, "living": self._leases.living()}, body)
        except FrameError as error:
            await refuse(send, 409, box_error(errno.EFBIG, str(error)))
        except ValueError as error:
            await refuse(send, 400, ValueError(str(error)))
        except (OSError, SandboxError) as error:
            await refuse(send, 404 if isinstance(error, wire.HostLost) else 409, error)
        except Exception as error:
            log.exception("a request failed")
            await refuse(send, 500, error)
        else:
            await reply(send, 200, wire.KIND, data)


async def whole_body(headers: dict[bytes, bytes], receive: Receive, most: int) -> bytes | None:
    """Read the body; None if the client hung up. Raises TooLarge; if the length is announced, before reading."""
    problem = TooLarge(f"the request is larger than {most} bytes (max_body of this host)")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > most:
        raise problem
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise problem
        if not message.get("more_body", False):
            return bytes(body)


async def refuse(send: Send, status: int, error: BaseException) -> None:
    await reply(send, status, "application/json", json.dumps({"error": wire.encode_error(error)}).encode())


async def reply(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
