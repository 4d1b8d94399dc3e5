"""The package index of one box: wheels of the index that pip is configured with, each recorded with its sha256.

This is the only server that the box can reach. Without a lock it serves any wheel; with one it serves just the locked
files, from the cache, which verifies that a recipe needs nothing else. Source distributions are never served, so
nothing is built.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.tasks.install.server import IndexServer
from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.index import Index, IndexFile, PackageError
from woodshed.tasks.packages.source import fetch, is_cached
from woodshed.tasks.sources.requirements import canonical

_PAGE = re.compile(r"/simple/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/?")
_FILE = re.compile(r"/files/([A-Za-z0-9._-]{1,100})/([^/]{1,250}\.whl)")


class Depot(IndexServer[Wheel]):
    """A package index. ``without``: projects under test, whose wheels hold the answers; ``only``: locked files."""

    def __init__(
        self, *, without: Iterable[str] = (), only: Iterable[Wheel] | None = None, cache: Path | None = None
    ) -> None:
        super().__init__(map(canonical, without), cache)
        self.only = None if only is None else {w.file: w for w in only}
        self._index = Index()
        self._pages: dict[str, list[IndexFile]] = {}

    def close(self) -> None:
        self._index.close()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if match := _PAGE.fullmatch(path):
            files = self.page(match[1])
            return ("text/html", _html(canonical(match[1]), files).encode()) if files else None
        if match := _FILE.fullmatch(path):
            data = self.file(match[1], match[2])
            return ("application/octet-stream", data) if data is not None else None
        return None

    def page(self, project: str) -> list[IndexFile]:
        """The wheels of a project; empty if it is in ``without`` or unknown."""
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
                    self.note(error)
                    return []
                unique = {f.filename: f for f in reversed(found) if f.filename.endswith(".whl") and not f.yanked}
                self._pages[name] = list(unique.values())
            return self._pages[name]

    def file(self, project: str, filename: str) -> bytes | None:
        """The bytes of a wheel that ``page`` lists, checked against its hash; None if it cannot be served."""
        listed = next((f for f in self.page(project) if f.filename == filename), None)
        name, version = wheel_name(filename)
        if listed is None or canonical(project) != canonical(name):
            return None
        try:
            if self.only is not None and not is_cached(filename, listed.sha256, cache=self._cache):
                raise PackageError(f"{filename} is locked but not in the cache")
            with self._lock:
                data, sha256 = self._bytes(listed, name, version)
        except PackageError as error:
            self.note(error)
            return None
        self.served[filename] = Wheel(name, version, filename, sha256)
        return data

    def _bytes(self, listed: IndexFile, name: str, version: str) -> tuple[bytes, str]:
        if listed.sha256:
            path = fetch(name, version, listed.filename, listed.sha256, cache=self._cache, index=self._index)
            return path.read_bytes(), listed.sha256
        data = self._index.download(listed)
        sha256 = hashlib.sha256(data).hexdigest()
        write_whole((self._cache or cache_directory()) / "packages" / sha256[:16] / listed.filename, data)
        return data, sha256


def wheel_name(filename: str) -> tuple[str, str]:
    """Return (project, version) from the file name of a wheel (PEP 427); ``("", "")`` if it is not one."""
    parts = filename.removesuffix(".whl").split("-")
    return (parts[0], parts[1]) if len(parts) in (5, 6) else ("", "")


def _html(project: str, files: list[IndexFile]) -> str:
    lines = []
    for file in files:
        href = f"/files/{project}/{quote(file.filename)}" + (f"#sha256={file.sha256}" if file.sha256 else "")
        python = f' data-requires-python="{html.escape(file.requires_python)}"' if file.requires_python else ""
        lines.append(f'<a href="{html.escape(href)}"{python}>{html.escape(file.filename)}</a>')
    return "<!DOCTYPE html><html><body>\n" + "<br>\n".join(lines) + "\n</body></html>\n"
