"""The network of a box with a kernel of its own: ports of its 127.0.0.1 whose connections the host serves.

PID 1 accepts them and forwards bytes over its channel unread, in frames: ``open``, ``data``, ``eof``, ``close`` and
``ack``. Each direction of a connection has at most ``WINDOW`` unacknowledged bytes, so neither side buffers more and no
connection blocks another. The host's end is ``gvisor/connections.py``.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from typing import Any

WINDOW, CHUNK = 256 << 10, 64 << 10
MAX_OPEN = 80
_BACKLOG = 64


class _Connection:
    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number, self.sock = number, sock
        self.waiting = bytearray()  # bytes to be written to the box's socket
        self.unacknowledged = 0  # bytes sent to the host that it has not acknowledged
        self.read_all = self.host_done = self.host_gone = False


class Connections:
    """The connections of a box; binds ``ports``, registers with ``poll``, and sends frames to the host by ``send``."""

    def __init__(self, ports: Sequence[int], poll: select.poll, send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._poll, self._send = poll, send
        self._listening: dict[int, tuple[int, socket.socket]] = {}  # descriptor -> port and socket
        self._open: dict[int, _Connection] = {}  # by number
        self._by_fd: dict[int, _Connection] = {}
        self._last = 0
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
            listener.setblocking(False)
            self._listening[listener.fileno()] = (port, listener)
            poll.register(listener.fileno(), select.POLLIN)

    def ready(self, fd: int) -> bool:
        """Handle a descriptor that is ready; return False if it does not belong to a connection."""
        if fd in self._listening:
            self._accept(*self._listening[fd])
        elif fd in self._by_fd:
            self._read(self._by_fd[fd])
        else:
            return False
        return True

    def take(self, frame: dict[str, Any], body: bytes) -> None:
        """Handle a frame from the host: as above, or ``reset`` (drop all connections) or ``shut`` (stop listening)."""
        kind, connection = frame["net"], self._open.get(frame.get("stream", 0))
        if kind == "reset":
            for each in list(self._open.values()):
                self._drop(each)
        elif kind == "shut":
            for fd, (_, listener) in self._listening.items():
                self._poll.unregister(fd)
                listener.close()
            self._listening.clear()
        elif connection is not None:
            if kind == "data":
                connection.waiting += body
            elif kind == "ack":
                connection.unacknowledged -= frame["bytes"]
            connection.host_done |= kind in ("eof", "close")
            connection.host_gone |= kind == "close"
            self._write(connection)

    def _accept(self, port: int, listener: socket.socket) -> None:
        try:
            sock = listener.accept()[0]
        except OSError:
            return
        if len(self._open) >= MAX_OPEN:
            sock.close()
            return
        sock.setblocking(False)
        self._last += 1
        self._open[self._last] = self._by_fd[sock.fileno()] = _Connection(self._last, sock)
        self._send({"net": "open", "stream": self._last, "port": port}, b"")
        self._watch(self._open[self._last])

    def _read(self, connection: _Connection) -> None:
        room = min(CHUNK, WINDOW - connection.unacknowledged)
        if not connection.read_all and room > 0:
            try:
                data = connection.sock.recv(room)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(connection)
                return
            else:
                connection.read_all = not data
                connection.unacknowledged += len(data)
                self._send({"net": "data" if data else "eof", "stream": connection.number}, data)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            if connection.waiting:
                sent = connection.sock.send(connection.waiting)
                del connection.waiting[:sent]
                self._send({"net": "ack", "stream": connection.number, "bytes": sent}, b"")
            if connection.host_done and not connection.waiting:
                connection.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if connection.host_done and not connection.waiting and (connection.read_all or connection.host_gone):
            self._drop(connection)
        else:
            self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        may_read = not connection.read_all and connection.unacknowledged < WINDOW
        wanted = (select.POLLIN if may_read else 0) | (select.POLLOUT if connection.waiting else 0)
        fd = connection.sock.fileno()
        if wanted:
            self._poll.register(fd, wanted)
        else:  # unregistered: one registered for no event would still report that its peer hung up
            self._forget(fd)

    def _drop(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        self._forget(fd)
        del self._open[connection.number], self._by_fd[fd]
        connection.sock.close()
        self._send({"net": "close", "stream": connection.number}, b"")

    def _forget(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass
