"""The npm registry of one box, and a read-only client of the registry that npm is configured with.

Like ``install/python/depot.py`` for wheels: without a lock it serves any package, recorded with its sha512; with one it
serves just the locked archives, from the cache, with the same metadata (such as the latest version) as before.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from woodshed.record.atomic import write_whole
from woodshed.tasks.install.kit import INDEX_PORT, Archive
from woodshed.tasks.install.server import IndexServer
from woodshed.tasks.languages.node.npm import archive_path, configuration, integrity_of
from woodshed.tasks.packages.index import PackageError

_BRIEF = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"
_LARGEST = 256 << 20


class Upstream:
    """Client of the npm registry, with registry, proxy and CA bundle of npm's own configuration, read on first use.
    Credentials are not used: npm does not reveal them."""

    def package(self, name: str) -> dict[str, Any]:
        """The registry's document of a package, in the form for installers. PackageError if it cannot be fetched."""
        said = self._get(f"{self._registry(name)}/{quote(name, safe='@')}", name, accept=_BRIEF)
        try:
            found = json.loads(said)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PackageError(f"{name}: the npm registry does not answer with a JSON object")
        return found

    def download(self, name: str, tarball: str) -> bytes:
        """Download an archive, from the configured registry even if the document names another one (mirrors)."""
        _, there, rest = urlsplit(tarball).path.partition(f"/{name}/-/")
        return self._get(f"{self._registry(name)}/{name}/-/{rest}" if there else tarball, name)

    def close(self) -> None:
        if "_client" in vars(self):
            self._client.close()

    def _get(self, url: str, name: str, accept: str = "*/*") -> bytes:
        try:
            with self._client.stream("GET", url, headers={"Accept": accept}) as reply:
                if reply.status_code in (401, 403):
                    raise PackageError(f"{name}: the npm registry asks for a login, which boxes cannot use")
                if reply.status_code == 404:
                    raise PackageError(f"{name}: the npm registry has no such package")
                reply.raise_for_status()
                data = bytearray()
                for block in reply.iter_bytes():
                    data += block
                    if len(data) > _LARGEST:
                        raise PackageError(f"{name}: larger than {_LARGEST >> 20} MiB")
                return bytes(data)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise PackageError(f"{name}: the npm registry cannot be reached ({why}); configure npm") from None

    def _registry(self, name: str) -> str:
        scope = f"{name.partition('/')[0]}:registry" if name.startswith("@") else ""
        return str(self._settings.get(scope) or self._settings["registry"]).rstrip("/")

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return configuration()

    @cached_property
    def _client(self) -> httpx.Client:
        settings = self._settings
        verify: bool | ssl.SSLContext = settings.get("strict-ssl") is not False
        if verify and settings.get("cafile"):
            verify = ssl.create_default_context(cafile=str(settings["cafile"]))
        proxy = settings.get("https-proxy") or settings.get("proxy") or None
        return httpx.Client(verify=verify, proxy=proxy, timeout=60.0, follow_redirects=True)


_NAME = r"(?:@[A-Za-z0-9~][A-Za-z0-9._~-]{0,99}/)?[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,149}"
_PACKAGE = re.compile(rf"/({_NAME})")
_ARCHIVE = re.compile(rf"/-/archives/({_NAME})/([0-9A-Za-z.+-]{{1,100}})\.tgz")
_KEPT = (
    "name",
    "version",
    "dependencies",
    "optionalDependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "bin",
    "engines",
    "os",
    "cpu",
    "libc",
    "bundleDependencies",
    "bundledDependencies",
    "deprecated",
    "hasInstallScript",
    "_hasShrinkwrap",
)


class Registry(IndexServer[Archive]):
    """A registry. ``only``: locked archives; keys of ``served`` are ``PACKAGE@VERSION``."""

    def __init__(
        self, *, without: Iterable[str] = (), only: Iterable[Archive] | None = None, cache: Path | None = None
    ) -> None:
        super().__init__(without, cache)
        self.only = None if only is None else list(only)
        self._upstream = Upstream()
        self._said: dict[str, dict[str, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def close(self) -> None:
        self._upstream.close()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if match := _PACKAGE.fullmatch(path):
            said = self.package(match[1])
            return ("application/json", json.dumps(said).encode()) if said else None
        if match := _ARCHIVE.fullmatch(path):
            data = self.archive(match[1], match[2])
            return ("application/octet-stream", data) if data is not None else None
        return None

    def package(self, name: str) -> dict[str, Any]:
        """The document of a package for npm, with its versions; empty if it is in ``without`` or unknown."""
        if name in self.without:
            return {}
        if self.only is not None:
            return _document(name, [a for a in self.only if a.package == name])
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._said:
                try:
                    self._said[name] = self._upstream.package(name)
                except PackageError as error:
                    self.note(error)
                    return {}
        return _document(name, self._archives(name))

    def _archives(self, name: str) -> list[Archive]:
        said = self._said[name]
        latest = (said.get("dist-tags") or {}).get("latest")
        found = []
        for version, manifest in (said.get("versions") or {}).items():
            integrity = str((manifest.get("dist") or {}).get("integrity") or "")
            if integrity.startswith("sha512-"):
                kept = {key: manifest[key] for key in _KEPT if key in manifest}
                found.append(
                    Archive(package=name, version=version, integrity=integrity, manifest=kept, latest=version == latest)
                )
        return found

    def archive(self, name: str, version: str) -> bytes | None:
        """The bytes of a version that ``package`` lists, checked against its hash; None if it cannot be served."""
        if name in self.without:
            return None
        if self.only is None and not self.package(name):
            return None
        listed = self.only if self.only is not None else self._archives(name)
        found = next((a for a in listed if (a.package, a.version) == (name, version)), None)
        if found is None:
            return None
        try:
            data = self._bytes(found)
        except PackageError as error:
            self.note(error)
            return None
        self.served[f"{name}@{version}"] = found
        return data

    def _bytes(self, found: Archive) -> bytes:
        path = archive_path(found.integrity, self._cache)
        if path.is_file() and integrity_of(data := path.read_bytes()) == found.integrity:
            return data
        what = f"{found.package} {found.version}"
        if self.only is not None:
            raise PackageError(f"{what} is locked but not in the cache")
        dist = self._said[found.package]["versions"][found.version]["dist"]
        data = self._upstream.download(found.package, str(dist.get("tarball") or ""))
        if integrity_of(data) != found.integrity:
            raise PackageError(f"{what}: the registry serves other bytes than it states; the package is not used")
        write_whole(path, data)
        return data


def _document(name: str, archives: Sequence[Archive]) -> dict[str, Any]:
    """The registry's document of a package, with the URLs of its archives on this server."""
    versions = {}
    for a in archives:
        tarball = f"http://127.0.0.1:{INDEX_PORT}/-/archives/{quote(name, safe='@/')}/{quote(a.version)}.tgz"
        dist = {"tarball": tarball, "integrity": a.integrity}
        versions[a.version] = {**a.manifest, "name": name, "version": a.version, "dist": dist}
    tags = dict([("latest", a.version) for a in archives if a.latest])
    return {"name": name, "dist-tags": tags, "versions": versions} if versions else {}
