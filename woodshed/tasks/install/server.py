"""HTTP server with the files of a package index: the only server that a box can reach during an install."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import unquote

from woodshed.tasks.packages.index import PackageError

MAX_CONNECTIONS, _MAX_PROBLEMS = 16, 50


Served = TypeVar("Served")


class IndexServer(ABC, Generic[Served]):
    """A context manager that serves on ``port`` of 127.0.0.1. ``without``: names of projects that are not served, those
    under test. ``served``: file name -> file that was served. ``problems``: what could not be fetched, and why."""

    port: int

    def __init__(self, without: Iterable[str], cache: Path | None) -> None:
        self.without = frozenset(without)
        self.served: dict[str, Served] = {}
        self.problems: list[str] = []
        self._cache = cache
        self._lock = threading.Lock()

    @abstractmethod
    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return (content type, body) of a decoded path, None if there is nothing. Called by several threads."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; there are no more requests."""

    def note(self, error: PackageError) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(str(error))

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.close()


class _Server(ThreadingHTTPServer):
    """Serves ``MAX_CONNECTIONS`` at once and drops further ones: code in the box may be hostile."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None  # the client closed the connection


def _handler(server: IndexServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0

        def do_GET(self) -> None:
            found = server.answer(unquote(self.path.partition("?")[0]))
            if found is not None:
                self._answer(200, *found)
            else:
                self._answer(404, "text/plain", b"no such project or file here\n")

        def _answer(self, status: int, kind: str, data: bytes) -> None:
            with suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler
