"""Read-only client of the registry that npm is configured with: what there is of a package, and its archives."""

from __future__ import annotations

import json
import ssl
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.languages.node.npm import configuration

_BRIEF = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"
_LARGEST = 256 << 20


class Upstream:
    """Registry, proxy and CA bundle are those of npm's own configuration, asked when first needed. Credentials are not:
    npm tells them to nobody."""

    def package(self, name: str) -> dict[str, Any]:
        """The document of a package, for an installer. Raises PackageError where it cannot be had."""
        said = self._get(f"{self._registry(name)}/{quote(name, safe='@')}", name, accept=_BRIEF)
        try:
            found = json.loads(said)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PackageError(f"{name}: what the npm registry says of it is no JSON object")
        return found

    def download(self, name: str, tarball: str) -> bytes:
        """An archive, from the configured registry wherever the document says it lies (mirrors pass documents on)."""
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
