"""The head of a proxy request, read strictly: what two programs could read differently is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from .rules import split_host

MAX_HEAD = 32 << 10
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[!-~]+")
# Between the client and this proxy only, or decided here.
_HOP = frozenset(
    ["host", "connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "keep-alive", "te",
     "trailer", "upgrade", "content-length"]
)  # fmt: skip


class BadRequest(ValueError):
    """Not a request that this proxy takes; ``status`` is the answer's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Request:
    """``head`` is what goes to the server (empty for CONNECT), followed by ``length`` bytes of body."""

    method: str
    host: str
    port: int
    path: str
    head: bytes = b""
    length: int = 0


def parse_request(data: bytes) -> Request:
    """``data`` ends with the empty line. Raises BadRequest."""
    try:
        first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequest(400, "the request line is malformed") from None
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target) or version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(400, "the request line is malformed")
    if method == "CONNECT":
        host, port = _place(target)
        if port is None:
            raise BadRequest(400, "CONNECT needs HOST:PORT")
        return Request(method, host, port, "")
    url = urlsplit(target)
    if url.scheme.lower() != "http" or "@" in url.netloc:
        raise BadRequest(400, "this is a proxy: it takes CONNECT and http:// URLs without a password")
    host, port = _place(url.netloc)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    fields = [_field(line) for line in lines]
    length = _length(fields)
    kept = [f"{name}: {value}" for name, value in fields if name.lower() not in _HOP]
    if length or method in ("POST", "PUT", "PATCH"):
        kept.append(f"Content-Length: {length}")
    # One request a connection: a second one could name another host.
    head = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", *kept, "Connection: close", "", ""]
    return Request(method, host, port or 80, path, "\r\n".join(head).encode("latin-1"), length)


def answer(status: int, phrase: str, text: str = "") -> bytes:
    """A whole response with a plain text, after which the connection ends."""
    body = (text + "\n").encode() if text else b""
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _place(netloc: str) -> tuple[str, int | None]:
    try:
        return split_host(netloc)
    except ValueError:
        raise BadRequest(400, "the host is malformed") from None


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or any(c in value for c in "\r\n\0"):
        raise BadRequest(400, "a header field is malformed")
    return name, value.strip(" \t")


def _length(fields: list[tuple[str, str]]) -> int:
    if any(name.lower() == "transfer-encoding" for name, _ in fields):
        raise BadRequest(411, "send the body with Content-Length")
    lengths = {value for name, value in fields if name.lower() == "content-length"}
    if not lengths:
        return 0
    (text, *others) = lengths
    if others or not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadRequest(400, "Content-Length is malformed")
    return int(text)
