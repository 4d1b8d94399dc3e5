"""Reading Python source exactly as the interpreter does, or saying why it cannot be read here.

Standard library only: the screen also runs inside boxes, where the interpreter may be another one than the host's.
"""

from __future__ import annotations

import ast
import re
import sys

_COOKIE = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK = re.compile(rb"[ \t\f]*(?:#.*)?")
_SAFE = ("utf-8", "utf8", "latin-1", "latin1", "iso-8859-1", "iso8859-1", "iso-latin-1", "ascii", "us-ascii")
"""Encodings that the interpreter decodes itself. Any other name is looked up in a registry which code under test can
write to, so the text that the host would read need not be the text that the box runs."""


class UnreadableError(Exception):
    """The source cannot be judged; the message reads as what the file does. ``elsewhere``: another interpreter may
    be able to parse it."""

    def __init__(self, message: str, *, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


def declared_encoding(data: bytes) -> str:
    """The encoding that a ``coding`` line names, as it is written there; ``utf-8`` where there is none."""
    text = data[:4096].replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # the interpreter's lines end with either
    first, _, rest = text.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    second = rest.partition(b"\n")[0]
    found = _COOKIE.match(first) or (_COOKIE.match(second) if _BLANK.fullmatch(first) else None)
    return found[1].decode("ascii") if found else "utf-8"


def is_safe(encoding: str) -> bool:
    """Whether no code under test can decide what text in this encoding says."""
    name = encoding.lower().replace("_", "-")
    return name in _SAFE or name.startswith(("utf-8-", "latin-1-", "iso-8859-1-", "iso-latin-1-"))


def parse(data: bytes) -> ast.Module:
    """The syntax tree. Raises UnreadableError; an encoding that is not safe is read here all the same."""
    if b"\0" in data:
        raise UnreadableError("contains null bytes")
    try:
        return ast.parse(data)
    except (RecursionError, MemoryError):
        raise UnreadableError("is nested too deeply to be read") from None
    except (SyntaxError, ValueError, LookupError) as error:
        why = getattr(error, "msg", None) or str(error)
        version = ".".join(map(str, sys.version_info[:2]))
        raise UnreadableError(f"cannot be parsed by Python {version}: {why}", elsewhere=True) from None
