"""Read everything in a file: text in several encodings, files in containers, code objects in bytecode."""

from __future__ import annotations

import base64
import binascii
import bz2
import gzip
import hashlib
import html
import io
import json
import lzma
import re
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from urllib.parse import unquote

MAX_BYTES = 64 << 20
MAX_DEPTH = 4
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{32}[A-Za-z0-9+/\r\n]*={0,2}")
_BASE32 = re.compile(rb"[A-Z2-7]{48}[A-Z2-7\r\n]*={0,6}")
_BASE85 = re.compile(rb"[0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]{80,}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){24,}")
_UU = re.compile(rb"(?m)(?:^M[ -`]{60}\r?\n)+(?:^[ -`]{2,61}\r?\n?)?")
_ENTITY = re.compile(rb"&(?:lt|gt|quot|amp|#\d+|#x[0-9a-fA-F]+);")
_UNICODE = re.compile(rb"\\u00[0-7][0-9a-fA-F]")
_ENCODINGS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], bytes]], ...] = (
    (_BASE64, base64.b64decode),
    (_HEX, binascii.unhexlify),
    (_BASE32, base64.b32decode),
    (_BASE85, base64.b85decode),
)


def texts_of(data: bytes, depth: int = 0) -> Iterator[str]:
    """Texts in ``data``: as UTF-8, as UTF-16 and with string escapes undone; likewise for files in containers.

    Archives that unpack to more than ``MAX_BYTES`` or nest deeper than ``MAX_DEPTH`` are read up to there.
    """
    yield data.decode("utf-8", "replace")
    if b"\0" in data[:4096]:
        yield data.decode("utf-16-le", "replace")
        yield data.decode("utf-16-be", "replace")
    if b"\\n" in data or b'\\"' in data:
        text = data.decode("utf-8", "replace")
        yield text.replace("\\n", "\n").replace('\\"', '"').replace("\\t", "\t").replace("\\'", "'")
    yield from _unescaped(data)
    if depth < MAX_DEPTH:
        for inner in _contents(data):
            yield from texts_of(inner[:MAX_BYTES], depth + 1)


def _unescaped(data: bytes) -> Iterator[str]:
    """``data`` with HTML entities, URL escapes or ``\\uXXXX`` escapes undone, if it has any."""
    if _ENTITY.search(data):
        yield html.unescape(data.decode("utf-8", "replace"))
    if b"%0A" in data or b"%20" in data or b"%28" in data:
        yield unquote(data.decode("utf-8", "replace"))
    if _UNICODE.search(data):
        text = data.decode("utf-8", "replace")
        yield re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)


def _contents(data: bytes) -> Iterator[bytes]:
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _zip(data)
    elif data[:2] == b"\x1f\x8b":
        yield from _attempt(lambda: gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES))
    elif data[:3] == b"BZh":
        yield from _attempt(lambda: bz2.BZ2Decompressor().decompress(data, MAX_BYTES))
    elif data[:6] == b"\xfd7zXZ\x00":
        yield from _attempt(lambda: lzma.LZMADecompressor().decompress(data, MAX_BYTES))
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield from _attempt(lambda: _zstd(data))
    elif data[:1] == b"\x78":  # zlib: a loose git object
        yield from _attempt(lambda: zlib.decompressobj().decompress(data, MAX_BYTES))
    elif data[:16] == b"SQLite format 3\0":
        yield from _sqlite(data)
    elif data[257:262] == b"ustar":
        yield from _tar(data)
    for pattern, decode in _ENCODINGS:
        for match in pattern.finditer(data):
            text = match.group().replace(b"\r", b"").replace(b"\n", b"")
            yield from _attempt(partial(decode, text))
    for match in _UU.finditer(data):
        yield b"".join(part for line in match.group().splitlines() for part in _attempt(partial(binascii.a2b_uu, line)))


def _attempt(read: Callable[[], bytes]) -> Iterator[bytes]:
    try:
        yield read()
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, binascii.Error):
        return


def _zstd(data: bytes) -> bytes:
    import zstandard

    try:
        return bytes(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(MAX_BYTES))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def _zip(data: bytes) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            left = MAX_BYTES
            for member in archive.infolist():
                left -= member.file_size
                if left < 0:
                    return
                yield archive.read(member)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError, zlib.error):
        return


def _tar(data: bytes) -> Iterator[bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is not None:
                    yield stream.read(MAX_BYTES)
    except (tarfile.TarError, OSError):
        return


def _sqlite(data: bytes) -> Iterator[bytes]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data[:18] + b"\1\1" + data[20:])  # in WAL mode it could not be opened in memory
        tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
        for (table,) in tables:
            quoted = '"' + table.replace('"', '""') + '"'
            for row in connection.execute(f"select * from {quoted}"):
                for value in row:
                    if isinstance(value, str | bytes):
                        yield value.encode() if isinstance(value, str) else value
    except sqlite3.Error:
        return
    finally:
        connection.close()


def fingerprints(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield (name, digest of instructions, names and plain constants) of a code object and those inside it."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    text = json.dumps([code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants])
    yield code.co_name, hashlib.sha256(text.encode()).hexdigest()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from fingerprints(constant)


def code_objects(data: bytes) -> list[tuple[str, str]] | None:
    """Fingerprints of the code in ``.pyc`` bytes of this interpreter's version; None for anything else.

    A child process unmarshals it, because hostile data can crash the interpreter.
    """
    from importlib.util import MAGIC_NUMBER

    if len(data) < 16 or data[2:4] != b"\r\n" or data[:4] != MAGIC_NUMBER:
        return None
    program = (
        "import json,marshal,sys\nfrom woodshed.tasks.validate.leak_readers import fingerprints\n"
        "print(json.dumps(list(fingerprints(marshal.loads(sys.stdin.buffer.read())))))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=data[16:], capture_output=True, timeout=60)
    if done.returncode != 0:
        return []
    return [(name, digest) for name, digest in json.loads(done.stdout)]
