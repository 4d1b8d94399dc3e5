"""Planted leaks of many kinds are found; a clean workspace is not accused."""

from __future__ import annotations

import base64
import binascii
import bz2
import gzip
import html
import importlib.util
import io
import json
import lzma
import marshal
import pickle
import sqlite3
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable

import pytest
import zstandard

from woodshed.tasks.validate.leaks import copies, interface_of, scan

GOLD = b'''"""Shapes."""


def area(width, height):
    """Area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError(f"negative side: {min(width, height)}")
    return width * height - overlap(width, height)


def overlap(width, height):
    return 0
'''
MUTANT = GOLD.replace(b"width < 0 or height", b"width < 0 and height")
DELETED = GOLD.split(b"    if width")[0] + b"    raise NotImplementedError\n\n\n" + GOLD[GOLD.index(b"def overlap") :]
LINE = b"    if width < 0 or height < 0:\n"
TESTS = b"from shapes import area\n\ndef test_area():\n    assert area(2, 3) == 6\n"


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/shapes.py", data)
    return buffer.getvalue()


def tarred(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("shapes.py")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _pyc(data: bytes) -> bytes:
    code = compile(data, "shapes.py", "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _sqlite(data: bytes) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("pragma page_size = 512")  # the text spills over several pages
    connection.execute("create table files (path text, data text)")
    connection.execute("insert into files values (?, ?)", ("shapes.py", "x" * 3000 + "\n" + data.decode()))
    connection.commit()
    return connection.serialize()


PLANTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "copy": ("old/shapes.txt", lambda d: d),
    "tests comment": ("tests/test_shapes.py", lambda d: TESTS + b"# " + d.replace(b"\n", b"\n# ")),
    "other quotes and spacing": ("notes.md", lambda d: d.replace(b'"', b"'").replace(b" < ", b"<")),
    "utf-16": ("notes.txt", lambda d: d.decode().encode("utf-16")),
    "json string": ("cache.json", lambda d: json.dumps({"source": d.decode()}).encode()),
    "zip": ("wheel.whl", zipped),
    "tar.gz": ("sdist.tar.gz", tarred),
    "nested archives": ("a.bin", lambda d: zipped(tarred(d))),
    "gzip": ("a.gz", gzip.compress),
    "bz2": ("a.bz2", bz2.compress),
    "xz": ("a.xz", lzma.compress),
    "zstd": ("a.zst", lambda d: zstandard.ZstdCompressor().compress(d)),
    "git object": ("ab/cdef", lambda d: zlib.compress(b"blob %d\0" % len(d) + d)),
    "base64": ("data.txt", lambda d: base64.encodebytes(d)),
    "hex": ("data.txt", lambda d: d.hex().encode()),
    "sqlite": ("cache.db", _sqlite),
    "bytecode": ("shapes.bin", _pyc),
    "diff": ("fix.txt", lambda d: b"".join(b"+" + line for line in d.splitlines(keepends=True))),
    "notebook": ("a.ipynb", lambda d: json.dumps({"cells": [{"source": d.decode().splitlines(True)}]}).encode()),
    "html": ("docs/source.html", lambda d: html.escape(d.decode()).encode()),
    "url encoded": ("a.txt", lambda d: urllib.parse.quote(d).encode()),
    "xml comment": ("a.xml", lambda d: b"<a><!-- " + d + b" --></a>"),
    "uu": ("a.uu", lambda d: b"".join(binascii.b2a_uu(d[i : i + 45]) for i in range(0, len(d), 45))),
    "base85": ("a.txt", base64.b85encode),
    "base32": ("a.txt", base64.b32encode),
    "pickle": ("a.pickle", lambda d: pickle.dumps({"source": d.decode()})),
    "numbered lines": ("a.txt", lambda d: b"".join(b"%4d\t%b" % x for x in enumerate(d.splitlines(True), 1))),
    "unicode escapes": ("a.json", lambda d: "".join(f"\\u{c:04x}" for c in d).encode()),
    "tar in base64": ("a.txt", lambda d: base64.b64encode(tarred(d))),
    "zlib in hex": ("a.txt", lambda d: zlib.compress(d).hex().encode()),
}


@pytest.mark.parametrize("start", [MUTANT, DELETED], ids=["mutant", "deleted"])
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_leak_is_found(plant: str, start: bytes) -> None:
    name, pack = PLANTS[plant]
    before = {"shapes.py": start, "tests/test_shapes.py": TESTS}
    files = {**before, name: pack(GOLD)}
    found = scan(files, before, {"shapes.py": GOLD})
    assert [leak.path for leak in found] == [name]


@pytest.mark.parametrize(
    "path", [".git/objects/ab/cd", "pkg/__pycache__/a.cpython-311.pyc", ".mypy_cache/3.11/a.json", "shapes.py.orig",
             "site-packages/shapes.py", "pkg.egg-info/SOURCES.txt", "shapes.py~"],
)  # fmt: skip
def test_forbidden_paths_are_leaks_by_name(path: str) -> None:
    before = {"shapes.py": MUTANT}
    assert [leak.kind for leak in scan({**before, path: b"harmless"}, before, {"shapes.py": GOLD})] == ["path"]


def test_there_are_enough_kinds() -> None:
    assert len(PLANTS) >= 20


def test_a_single_changed_line_is_found() -> None:
    before = {"shapes.py": MUTANT}
    assert scan({**before, "CHANGES.txt": b"was: " + LINE.strip()}, before, {"shapes.py": GOLD})


@pytest.mark.parametrize("start", [MUTANT, DELETED], ids=["mutant", "deleted"])
def test_clean_workspace_is_not_accused(start: bytes) -> None:
    before = {"shapes.py": start, "tests/test_shapes.py": TESTS, "shapes.bin": _pyc(start)}
    assert scan(before, before, {"shapes.py": GOLD}) == []


def test_damaged_containers_are_read_as_bytes() -> None:
    before = {"shapes.py": MUTANT}
    damaged = {f"f{i}": pack(GOLD)[: 40 + i] for i, (_, pack) in enumerate(PLANTS.values())}
    damaged["pyc"] = _pyc(GOLD)[:60]
    scan({**before, **damaged}, before, {"shapes.py": GOLD})


def test_the_interface_may_be_told_and_nothing_else() -> None:
    told = interface_of(GOLD)
    assert b"def area(width, height):" in told and b"Area of a rectangle" in told and b"raise" not in told
    assert interface_of(b"def f(a): return a + 1\n") == interface_of(b"def f(:") == b""


def test_a_twin_of_what_was_removed_is_a_leak() -> None:
    """In the same file or another: the changed file's own words are no excuse there."""
    body = b"    if width < 0 or height < 0:\n        raise ValueError(min(width, height))\n    return width * height\n"
    body += b"\n".join(b"    # and on" for _ in range(3)) + b"\n    return (width + height) * max(width, height, 1)\n"
    twin = b"def product(width, height):\n" + body
    gold = {"shapes.py": twin + b"\n\ndef area(width, height):\n" + body}
    start = {"shapes.py": twin + b"\n\ndef area(width, height):\n    raise NotImplementedError\n"}
    (leak,) = copies(start, gold)
    assert (leak.path, leak.kind) == ("shapes.py", "copy") and leak.share > 0.9
    other = {"shapes.py": b"def area(width, height):\n    raise NotImplementedError\n"}
    one = {"shapes.py": b"def area(width, height):\n" + body}
    assert [leak.path for leak in copies({**other, "twin.py": twin}, one)] == ["twin.py"]
    assert copies(other, one) == []
    assert copies(start, {"shapes.py": start["shapes.py"].replace(b"raise NotImplementedError", b"return 1")}) == []
