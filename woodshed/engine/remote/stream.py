"""One HTTP POST with a streamed response, over its own connection.

A connection pool would check every open connection for every piece that arrives. Without a pool, a hundred streams cost
only a hundred sockets.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import urlsplit

import httptools

from woodshed.engine.protocol import EngineLost

CONNECT_SECONDS = 5.0
_PIECE = 1 << 16


class StreamedResponse:
    """A POST of ``body``, whose media type is ``kind``. For servers that may be silent for long, ``alive`` checks after
    every ``silence`` seconds whether the server is up, and raises EngineLost if not.

    ``status`` is set when ``parts`` yields its first piece; ``complete`` becomes true when the whole response has
    arrived.
    """

    def __init__(
        self,
        url: str,
        key: str,
        body: bytes,
        silence: float,
        *,
        kind: str = "application/octet-stream",
        alive: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._url, self._key, self._body, self._silence = urlsplit(url), key, body, silence
        self._kind, self._alive = kind, alive
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.status = 0
        self.complete = False

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Pieces of the body as they arrive. Raises EngineLost if the connection fails, or if nothing arrives for
        ``silence`` seconds."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self._connect()
            writer.write(self._head() + self._body)
            while not self.complete:
                data = await self._read(reader)
                if not data:
                    raise EngineLost(f"{self._where}: the connection ended in the middle of a reply")
                self._parser.feed_data(data)
                self.status = self.status or self._parser.get_status_code()
                pieces, self._pieces = self._pieces, []
                for piece in pieces:
                    yield piece
        except TimeoutError:
            waited = self._silence if writer is not None else CONNECT_SECONDS
            raise EngineLost(f"{self._where}: nothing arrived for {waited:g} s") from None
        except OSError as error:
            raise EngineLost(f"{self._where}: {error}") from None
        except httptools.HttpParserError as error:
            raise EngineLost(f"{self._where}: not an HTTP server: {error}") from None
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    return await reader.read(_PIECE)
            except TimeoutError:
                if self._alive is None:
                    raise
            await self._alive()

    @property
    def _where(self) -> str:
        return f"engine {self._url.scheme}://{self._url.netloc}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = self._url.scheme == "https"
        port = self._url.port or (443 if secure else 80)
        context = ssl.create_default_context() if secure else None
        return await asyncio.open_connection(self._url.hostname, port, ssl=context, limit=4 * _PIECE)

    def _head(self) -> bytes:
        return (
            f"POST {self._url.path} HTTP/1.1\r\nhost: {self._url.netloc}\r\nauthorization: Bearer {self._key}\r\n"
            f"connection: close\r\ncontent-type: {self._kind}\r\ncontent-length: {len(self._body)}\r\n\r\n"
        ).encode()

    # ---- callbacks of httptools ----

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.complete = True
