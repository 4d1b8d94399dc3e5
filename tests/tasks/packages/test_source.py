"""Fetching: index pages, hashes, safe archives. Real HTTP on loopback, real archives."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from woodshed.record.cache import cache_directory
from woodshed.tasks.packages.index import Index, IndexSettings, PackageError, pip_settings
from woodshed.tasks.packages.source import fetch, read_sdist, unpack_wheel


def sdist(members: dict[str, bytes], extra: list[tarfile.TarInfo] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra or []:
            archive.addfile(info)
    return buffer.getvalue()


SDIST = sdist({"demo-1.0/demo.py": b"x = 1\n", "demo-1.0/tests/test_demo.py": b"pass\n"})
SHA = hashlib.sha256(SDIST).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body, kind = b"", "text/html"
        if self.path == "/html/my-demo/":
            body = f'<a href="../../files/demo-1.0.tar.gz#sha256={SHA}">demo-1.0.tar.gz</a>'.encode()
        elif self.path == "/json/my-demo/":
            entry = {"filename": "demo-1.0.tar.gz", "url": "/files/demo-1.0.tar.gz", "hashes": {"sha256": SHA}}
            body, kind = json.dumps({"files": [entry]}).encode(), "application/vnd.pypi.simple.v1+json"
        elif self.path == "/files/demo-1.0.tar.gz":
            body, kind = SDIST, "application/gzip"
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()


@pytest.mark.parametrize("page", ["html", "json"])
def test_fetch_from_both_page_formats(server: str, page: str, tmp_path: Path) -> None:
    index = Index(IndexSettings((f"{server}/{page}",)))
    path = fetch("My_Demo", "1.0", "demo-1.0.tar.gz", SHA, cache=tmp_path, index=index)
    assert read_sdist(path) == {"demo.py": b"x = 1\n", "tests/test_demo.py": b"pass\n"}
    dead = Index(IndexSettings(("http://127.0.0.1:9/simple",)))
    assert fetch("My_Demo", "1.0", "demo-1.0.tar.gz", SHA, cache=tmp_path, index=dead) == path  # cached: no network
    path.write_bytes(b"altered")
    assert fetch("My_Demo", "1.0", "demo-1.0.tar.gz", SHA, cache=tmp_path, index=index).read_bytes() == SDIST
    index.close()


def test_file_index(tmp_path: Path) -> None:
    (tmp_path / "simple" / "demo").mkdir(parents=True)
    (tmp_path / "demo-1.0.tar.gz").write_bytes(SDIST)
    (tmp_path / "simple" / "demo" / "index.html").write_text('<a href="../../demo-1.0.tar.gz">demo</a>')
    index = Index(IndexSettings((f"file://{tmp_path}/simple",)))
    assert fetch("demo", "1.0", "demo-1.0.tar.gz", SHA, cache=tmp_path / "c", index=index).read_bytes() == SDIST


def test_errors_are_told_apart(server: str, tmp_path: Path) -> None:
    index = Index(IndexSettings((f"{server}/html",)))
    with pytest.raises(PackageError, match="nothere: no such project"):
        fetch("nothere", "1.0", "nothere-1.0.tar.gz", SHA, cache=tmp_path, index=index)
    with pytest.raises(PackageError, match=r"no file demo-2.0.tar.gz; it has demo-1.0.tar.gz"):
        fetch("my-demo", "2.0", "demo-2.0.tar.gz", SHA, cache=tmp_path, index=index)
    with pytest.raises(PackageError, match=r"has sha256 .* the catalogue pins 0000"):
        fetch("my-demo", "1.0", "demo-1.0.tar.gz", "0" * 64, cache=tmp_path, index=index)
    with pytest.raises(PackageError, match="cannot be reached"):
        dead = Index(IndexSettings(("http://user:secret@127.0.0.1:9/simple",)))
        fetch("demo", "1.0", "demo-1.0.tar.gz", SHA, cache=tmp_path, index=dead)
    assert not list(tmp_path.rglob("*.tar.gz"))
    index.close()


def test_credentials_stay_out_of_messages(tmp_path: Path) -> None:
    dead = Index(IndexSettings(("http://user:secret@127.0.0.1:9/simple",)))
    with pytest.raises(PackageError) as caught:
        dead.files("demo")
    assert "secret" not in str(caught.value)


def test_pip_settings_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://one.invalid/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://two.invalid/simple http://three.invalid/simple")
    settings = pip_settings()
    assert settings.urls == tuple(f"http://{n}.invalid/simple" for n in ("one", "two", "three"))
    monkeypatch.delenv("PIP_INDEX_URL")
    assert pip_settings().urls[0].startswith("https://")


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path


def test_hostile_sdist_members_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data_filter", "FilterError"):  # Python 3.11.2 has neither
        monkeypatch.delattr(tarfile, name, raising=False)
    link = tarfile.TarInfo("demo-1.0/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device = tarfile.TarInfo("demo-1.0/device")
    device.type = tarfile.CHRTYPE
    outside = ["demo-1.0/../../escape.py", "../escape.py", "/escape.py", "demo-1.0/..", "demo-1.0/a/../../../escape.py"]
    inside = ["demo-1.0/ok.py", "demo-1.0//etc/passwd", "/demo-1.0/absolute.py", "./demo-1.0/./dot.py"]
    (tmp_path / "a.tar.gz").write_bytes(sdist(dict.fromkeys([*outside, *inside], b""), [link, device]))
    assert set(read_sdist(tmp_path / "a.tar.gz")) == {"ok.py", "etc/passwd", "absolute.py", "dot.py"}
    (tmp_path / "b.tar.gz").write_bytes(SDIST[:60])
    with pytest.raises(PackageError, match="not a readable source distribution"):
        read_sdist(tmp_path / "b.tar.gz")
    with pytest.raises(PackageError, match="more than 3 bytes"):
        (tmp_path / "c.tar.gz").write_bytes(SDIST)
        read_sdist(tmp_path / "c.tar.gz", max_bytes=3)


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "pkg/fast.so", "w-1.0.data/platlib/fast.so"])
def test_wheels_must_be_pure_and_safe(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr("pkg/__init__.py", "")
        archive.writestr(name, "x")
    with pytest.raises(PackageError):
        unpack_wheel(tmp_path / "w.whl", tmp_path / "target")
    assert not (tmp_path / "evil.py").exists()


def test_of_a_compiled_wheel_what_is_imported_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "w-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    names = ("pkg/__init__.py", "pkg/fast.so", "w-1.0.data/platlib/more.so", "w-1.0.data/scripts/run", "w-1.0.data/x")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    unpack_wheel(path, tmp_path / "target")
    found = {p.relative_to(tmp_path / "target").as_posix() for p in (tmp_path / "target").rglob("*") if p.is_file()}
    assert found == {"pkg/__init__.py", "pkg/fast.so", "more.so"}
