"""Read-only client of the package index that pip is configured with (simple repository API, PEP 503 and PEP 691).

Packages are fetched as plain files: nothing of a package is ever built, imported or executed here (``pip download``
of a source distribution would run its build backend).
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import httpx


class PackageError(Exception):
    """A package cannot be fetched, verified or prepared; the message says which one and what to do."""


@dataclass(frozen=True)
class IndexFile:
    """One file of an index page. ``sha256`` (lower-case hex) and ``requires_python`` (a version specifier) are empty if
    the index states none; ``yanked`` files are listed only for those who have pinned them (PEP 592)."""

    filename: str
    url: str
    sha256: str
    requires_python: str = ""
    yanked: bool = False


@dataclass(frozen=True)
class IndexSettings:
    """Indexes and how to connect to them. ``cert``: path of a CA bundle or None; ``proxy``: URL or None; ``timeout``:
    seconds."""

    urls: tuple[str, ...]
    cert: str | None = None
    proxy: str | None = None
    timeout: float = 60.0


def pip_settings() -> IndexSettings:
    """The indexes, proxy and CA bundle that pip would use, from its environment variables and configuration files."""
    values: dict[str, Any] = {}
    default = ""
    try:
        from pip._internal.configuration import Configuration
        from pip._internal.models.index import PyPI

        configuration = Configuration(isolated=False)
        configuration.load()
        # pip's own precedence: command-specific sections win over [global], the environment over both.
        found = dict(configuration.items())
        for section in ("global", "download", "install"):
            values.update({k.split(".", 1)[1]: v for k, v in found.items() if k.startswith(section + ".")})
        default = PyPI.simple_url
    except ImportError:  # an environment made by another installer may have no pip
        pass
    for key in ("index-url", "extra-index-url", "cert", "proxy"):
        if value := os.environ.get("PIP_" + key.replace("-", "_").upper()):
            values[key] = value
    first = str(values.get("index-url") or default)
    if not first:
        raise PackageError("no package index is known: pip is not installed here; set PIP_INDEX_URL")
    extra = str(values.get("extra-index-url") or "").split()
    cert = values.get("cert") or os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    return IndexSettings((first, *extra), str(cert) if cert else None, values.get("proxy") or None)


class Index:
    """Finds and downloads files; no caching, no hash check (see ``source.py``)."""

    def __init__(self, settings: IndexSettings | None = None) -> None:
        self.settings = settings or pip_settings()

    @cached_property
    def _client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=self.settings.cert)
        return httpx.Client(
            verify=context, proxy=self.settings.proxy, timeout=self.settings.timeout, follow_redirects=True
        )

    def files(self, project: str) -> list[IndexFile]:
        """All files of a project over all indexes, in the order of the indexes.

        Raises PackageError if no index could be reached or none has the project.
        """
        name = re.sub(r"[-_.]+", "-", project).lower()
        found: list[IndexFile] = []
        problems: list[str] = []
        for base in self.settings.urls:
            page = f"{base.rstrip('/')}/{name}/"
            try:
                found += self._page(page)
            except FileNotFoundError:
                continue
            except (httpx.HTTPError, OSError) as error:
                problems.append(f"{_without_credentials(page)}: {error or type(error).__name__}")
        if not found and problems:
            why = "; ".join(problems)
            raise PackageError(f"{project}: the package index cannot be reached ({why}); connect, or set PIP_INDEX_URL")
        if not found:
            raise PackageError(f"{project}: no such project on the package index; check the name in the catalogue")
        return found

    def download(self, file: IndexFile) -> bytes:
        """The bytes of a file. Raises PackageError if the download fails."""
        try:
            if file.url.startswith("file:"):
                return _local(file.url).read_bytes()
            reply = self._client.get(file.url)
            reply.raise_for_status()
            return reply.content
        except (httpx.HTTPError, OSError) as error:
            raise PackageError(f"{file.filename}: download failed ({error or type(error).__name__})") from None

    def _page(self, page: str) -> list[IndexFile]:
        if page.startswith("file:"):
            return _html_files((_local(page) / "index.html").read_text("utf-8"), page)
        accept = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
        reply = self._client.get(page, headers={"Accept": accept})
        if reply.status_code in (404, 410):
            raise FileNotFoundError(page)
        reply.raise_for_status()
        if "json" in reply.headers.get("content-type", ""):
            return [
                IndexFile(
                    filename=f["filename"],
                    url=urljoin(str(reply.url), f["url"]),
                    sha256=f.get("hashes", {}).get("sha256", ""),
                    requires_python=f.get("requires-python") or "",
                    yanked=bool(f.get("yanked")),
                )
                for f in reply.json()["files"]
            ]
        return _html_files(reply.text, str(reply.url))

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and (href := given.get("href")):
            self.links.append((href, given.get("data-requires-python") or "", "data-yanked" in given))


def _html_files(text: str, page: str) -> list[IndexFile]:
    parser = _Anchors()
    parser.feed(text)
    files = []
    for href, python, yanked in parser.links:
        url, _, fragment = urljoin(page, href).partition("#")
        filename = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
        sha256 = fragment.removeprefix("sha256=") if "sha256=" in fragment else ""
        files.append(IndexFile(filename=filename, url=url, sha256=sha256, requires_python=python, yanked=yanked))
    return files


def _local(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def _without_credentials(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
