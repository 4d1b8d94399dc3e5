"""A small npm registry on this machine, and the packages in it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


def archive(files: Mapping[str, str]) -> bytes:
    """As ``npm pack`` makes one."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


class LocalRegistry:
    """``packages``: name -> document; ``archives``: path -> bytes. ``asked`` has the paths of requests."""

    def __init__(self) -> None:
        self.packages: dict[str, dict[str, Any]] = {}
        self.archives: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url = ""

    def publish(self, name: str, version: str, files: Mapping[str, str], **manifest: Any) -> None:
        """The version published last is the latest."""
        said = {"name": name, "version": version, **manifest}
        data = archive({"package.json": json.dumps(said), **files})
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        self.archives[path] = data
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        document = self.packages.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        dist = {"tarball": f"https://elsewhere.invalid{path}", "integrity": integrity}  # as of a mirrored registry
        document["versions"][version] = {**said, "dist": dist}
        document["dist-tags"]["latest"] = version


@contextmanager
def local_registry() -> Iterator[LocalRegistry]:
    registry = LocalRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)
            registry.asked.append(path)
            found = registry.packages.get(path[1:])
            data = json.dumps(found).encode() if found else registry.archives.get(path)
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
