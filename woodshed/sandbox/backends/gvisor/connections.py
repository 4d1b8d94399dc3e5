"""The host's end of connections that a box's first process accepted: turns frames of its channel into asyncio streams.

The other end is ``guest/machine_net``. Input is hostile: more data than the window, a stream opened twice, too many
streams or an unknown frame end the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from woodshed.sandbox.guest.frames import FrameError
from woodshed.sandbox.guest.machine_net import CHUNK, MAX_OPEN, WINDOW

_READER_LIMIT = 32 << 10
Send = Callable[[dict[str, Any], bytes], None]


class Connections:
    """The open connections of one box. ``accept`` gets the port and the streams of each; ``send`` sends a frame."""

    def __init__(self, accept: Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], None], send: Send) -> None:
        self._accept, self._send = accept, send
        self._open: dict[int, _Transport] = {}

    def take(self, frame: dict[str, Any], body: bytes) -> None:
        """Handle a frame from the box. Raises FrameError."""
        kind, stream = frame["net"], frame.get("stream")
        if type(stream) is not int:
            raise FrameError("a frame of a connection has no number")
        transport = self._open.get(stream)
        if kind == "open":
            if transport is not None or len(self._open) > 2 * MAX_OPEN or type(frame.get("port")) is not int:
                raise FrameError("a connection that may not be opened")
            self._make(stream, frame["port"])
        elif kind not in ("data", "eof", "close", "ack"):
            raise FrameError(f"unknown frame of a connection: {str(kind)[:20]!r}")
        elif transport is not None:  # else it was closed here meanwhile, or belonged to the parent of a fork
            transport.take(kind, frame, body)

    def lost(self) -> None:
        """Abort every connection: the box is gone."""
        for transport in list(self._open.values()):
            transport.abort()

    def _make(self, stream: int, port: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READER_LIMIT, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport = _Transport(stream, protocol, self._send, lambda: self._open.pop(stream, None))
        self._open[stream] = transport
        protocol.connection_made(transport)
        self._accept(port, reader, asyncio.StreamWriter(transport, protocol, reader, loop))


class _Transport(asyncio.Transport):
    def __init__(
        self, stream: int, protocol: asyncio.StreamReaderProtocol, send: Send, forget: Callable[[], Any]
    ) -> None:
        super().__init__()
        self._stream, self._protocol, self._forget = stream, protocol, forget
        self._post = send
        self._waiting = bytearray()
        self._unacknowledged = self._owed = 0
        self._reading, self._full = True, False
        self._ending = self._ended = self._closing = self._gone = False

    def take(self, kind: str, frame: dict[str, Any], body: bytes) -> None:
        if kind == "data":
            self._owed += len(body)
            if self._owed > WINDOW:
                raise FrameError("a connection sends more than its window")
            self._protocol.data_received(body)
            self._acknowledge()
        elif kind == "ack":
            count = frame.get("bytes")
            if type(count) is not int or not 0 <= count <= self._unacknowledged:
                raise FrameError("a connection acknowledges bytes that it was not sent")
            self._unacknowledged -= count
            self._flush()
        elif kind == "eof":
            self._protocol.eof_received()
        else:
            self._end()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and not self._ending:
            self._waiting += data
            self._flush()

    def write_eof(self) -> None:
        self._ending = True
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._acknowledge()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close after what was written has been sent."""
        self._closing = True
        self._flush()

    def abort(self) -> None:
        self._closing = True
        self._waiting.clear()
        self._flush()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def _acknowledge(self) -> None:
        if self._reading and self._owed and not self._gone:
            self._send("ack", bytes=self._owed)
            self._owed = 0

    def _flush(self) -> None:
        while self._waiting and self._unacknowledged < WINDOW and not self._gone:
            piece = bytes(self._waiting[: min(CHUNK, WINDOW - self._unacknowledged)])
            del self._waiting[: len(piece)]
            self._unacknowledged += len(piece)
            self._send("data", piece)
        if bool(self._waiting) != self._full:
            self._full = bool(self._waiting)
            (self._protocol.pause_writing if self._full else self._protocol.resume_writing)()
        if self._waiting or self._gone:
            return
        if self._closing:
            self._send("close")
            self._end()
        elif self._ending and not self._ended:
            self._ended = True
            self._send("eof")

    def _end(self) -> None:
        if not self._gone:
            self._gone = self._closing = True
            self._forget()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def _send(self, kind: str, body: bytes = b"", **fields: int) -> None:
        self._post({"op": "net", "net": kind, "stream": self._stream, **fields}, body)
