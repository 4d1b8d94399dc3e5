"""The package index of one build box: wheels of the index that pip is configured with, each noted by its sha256.

A box reaches this server by a route of its own and nothing else. Open, it passes on any wheel; given a lock, it serves
those files and no other, from the cache alone, which is how a recipe is shown to need nothing that is not locked.
Source distributions are never served: nothing is built.
"""

from __future__ import annotations

import hashlib
import html
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.index import Index, IndexFile, PackageError
from woodshed.tasks.packages.source import fetch, is_cached
from woodshed.tasks.sources.requirements import canonical

MAX_CONNECTIONS, _MAX_PROBLEMS = 16, 50

_PAGE = re.compile(r"/simple/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/?")
_FILE = re.compile(r"/files/([A-Za-z0-9._-]{1,100})/([^/]{1,250}\.whl)")


class Depot:
    """Use as a context manager; ``port`` of 127.0.0.1 serves until it is left.

    ``without``: projects that are not served: those under test, whose copy would hold the answers. ``only``: the files
    of a lock. ``served`` is what was handed out, by file name; ``problems``: what could not be had and why.
    """

    def __init__(
        self, *, without: Iterable[str] = (), only: Iterable[Wheel] | None = None, cache: Path | None = None
    ) -> None:
        self.without = frozenset(map(canonical, without))
        self.only = None if only is None else {w.file: w for w in only}
        self.served: dict[str, Wheel] = {}
        self.problems: list[str] = []
        self._cache = cache
        self._index = Index()
        self._pages: dict[str, list[IndexFile]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Depot:
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
        self._index.close()

    def page(self, project: str) -> list[IndexFile]:
        """The wheels of a project, empty where it is barred or unknown."""
        name = canonical(project)
        if name in self.without:
            return []
        if self.only is not None:
            locked = [w for w in self.only.values() if canonical(w.name) == name]
            return [IndexFile(w.file, "", w.sha256) for w in locked]
        with self._lock:
            if name not in self._pages:
                try:
                    found = self._index.files(name)
                except PackageError as error:
                    self._note(error)
                    return []
                unique = {f.filename: f for f in reversed(found) if f.filename.endswith(".whl") and not f.yanked}
                self._pages[name] = list(unique.values())
            return self._pages[name]

    def file(self, project: str, filename: str) -> bytes | None:
        """The bytes of a wheel that ``page`` lists, checked against the hash that it states."""
        listed = next((f for f in self.page(project) if f.filename == filename), None)
        name, version = wheel_name(filename)
        if listed is None or canonical(project) != canonical(name):
            return None
        try:
            if self.only is not None and not is_cached(filename, listed.sha256, cache=self._cache):
                raise PackageError(f"{filename} is locked and not in the cache")
            with self._lock:
                data, sha256 = self._bytes(listed, name, version)
        except PackageError as error:
            self._note(error)
            return None
        self.served[filename] = Wheel(name, version, filename, sha256)
        return data

    def _note(self, error: PackageError) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(str(error))

    def _bytes(self, listed: IndexFile, name: str, version: str) -> tuple[bytes, str]:
        if listed.sha256:
            path = fetch(name, version, listed.filename, listed.sha256, cache=self._cache, index=self._index)
            return path.read_bytes(), listed.sha256
        data = self._index.download(listed)
        sha256 = hashlib.sha256(data).hexdigest()
        write_whole((self._cache or cache_directory()) / "packages" / sha256[:16] / listed.filename, data)
        return data, sha256


class _Server(ThreadingHTTPServer):
    """Serves a few connections at once and drops the others: what is in the box may be hostile."""

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
        return None  # a connection that was broken off; its client knows


def wheel_name(filename: str) -> tuple[str, str]:
    """Project and version of a wheel by its file name (PEP 427), ``("", "")`` where it is not one."""
    parts = filename.removesuffix(".whl").split("-")
    return (parts[0], parts[1]) if len(parts) in (5, 6) else ("", "")


def _handler(depot: Depot) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            if match := _PAGE.fullmatch(path):
                files = depot.page(match[1])
                if files:
                    return self._answer(200, "text/html", _html(canonical(match[1]), files).encode())
            elif match := _FILE.fullmatch(path):
                data = depot.file(match[1], match[2])
                if data is not None:
                    return self._answer(200, "application/octet-stream", data)
            self._answer(404, "text/plain", b"no such project or wheel here\n")

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


def _html(project: str, files: list[IndexFile]) -> str:
    lines = []
    for file in files:
        href = f"/files/{project}/{quote(file.filename)}" + (f"#sha256={file.sha256}" if file.sha256 else "")
        python = f' data-requires-python="{html.escape(file.requires_python)}"' if file.requires_python else ""
        lines.append(f'<a href="{html.escape(href)}"{python}>{html.escape(file.filename)}</a>')
    return "<!DOCTYPE html><html><body>\n" + "<br>\n".join(lines) + "\n</body></html>\n"
