"""Apply git's unified diffs to files in memory, without fuzz and offsets.

Patches of datasets are not trusted: their paths stay inside the repository, and nothing of them reaches git or a disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from woodshed.tasks.generators.packages.report import Rejected

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abfnrtv"\\])')
_PLAIN = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_SILENT = (b"index ", b"old mode ", b"similarity index ", b"dissimilarity index ")
_NO_END = b"\\ No newline"


@dataclass
class _Hunk:
    """``start``: 1-based line of the old file; if ``old`` is empty, the line before it. Lines keep their line ends."""

    start: int
    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)


@dataclass
class _FileChange:
    """``old`` and ``new``: paths, None if the file does not exist on that side."""

    old: str | None
    new: str | None
    hunks: list[_Hunk] = field(default_factory=list)


def apply_patch(files: Mapping[str, bytes], patch: str, what: str) -> dict[str, bytes]:
    """``files`` with ``patch`` applied, without fuzz and without offsets; ``what`` names the patch in reasons.

    Raises Rejected if it is not a unified diff, does not fit, names a path outside the repository, or is of an
    unsupported kind (binary, copies, links, submodules). Changes of file modes are ignored, as modes are not kept.
    """
    made = dict(files)
    for change in _Reader(patch, what).changes():
        old, new = change.old, change.new
        before = b"" if old is None else made.pop(old, None)
        if before is None:
            raise Rejected(f"its {what} does not apply: {old} is not there (links and large files are left out)")
        if new is not None and new in made:
            raise Rejected(f"its {what} does not apply: it makes {new}, which is there")
        after = _changed(before, change.hunks, f"its {what} does not apply: {old or new}")
        if new is not None:
            made[new] = after
        elif after:
            raise Rejected(f"its {what} does not apply: it removes {old} and keeps lines of it")
    return made


def _changed(data: bytes, hunks: list[_Hunk], why: str) -> bytes:
    have, made, at = _lines(data), [], 0
    for hunk in hunks:
        first = hunk.start - 1 if hunk.old else hunk.start
        if not at <= first <= len(have) or have[first : first + len(hunk.old)] != hunk.old:
            raise Rejected(f"{why} has other lines at {hunk.start}")
        made += [*have[at:first], *hunk.new]
        at = first + len(hunk.old)
    return b"".join([*made, *have[at:]])


def _lines(data: bytes) -> list[bytes]:
    *whole, last = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


class _Reader:
    def __init__(self, patch: str, what: str) -> None:
        self.lines = patch.encode("utf-8", "surrogateescape").split(b"\n")
        if self.lines[-1] == b"":
            self.lines.pop()
        self.what, self.at = what, 0

    def changes(self) -> Iterator[_FileChange]:
        while self.at < len(self.lines):
            if not self._here().strip():
                self.at += 1
            else:
                yield self._file()

    def _file(self) -> _FileChange:
        old: str | None = ""
        new: str | None = ""
        named, renamed = self._here().startswith(b"diff --git "), False
        if named:
            old, new, renamed = self._extended(*self._both(self._next()[len(b"diff --git ") :]))
        if self._here().startswith(b"--- "):
            old = self._side(self._next()[4:], b"a/", old)
            if not self._here().startswith(b"+++ "):
                raise self._strange()
            new = self._side(self._next()[4:], b"b/", new)
        elif not named:
            raise self._strange()
        if "" in (old, new) or old == new is None or (None not in (old, new) and (old != new) != renamed):
            raise self._strange()
        change = _FileChange(old, new)
        while self._here().startswith(b"@@ "):
            change.hunks.append(self._hunk())
        return change

    def _extended(self, old: str | None, new: str | None) -> tuple[str | None, str | None, bool]:
        """Return (old, new, whether it is a rename) after the lines between ``diff --git`` and the hunks."""
        renamed = False
        while self.at < len(self.lines) and not self._here().startswith((b"--- ", b"diff --git ", b"@@ ")):
            line = self._next()
            if line.startswith((b"GIT binary patch", b"Binary files ")):
                raise Rejected(f"its {self.what} is binary: {new or old}")
            if line.startswith((b"copy from ", b"copy to ")):
                raise Rejected(f"its {self.what} copies files: {new}")
            if line.startswith((b"new file mode ", b"deleted file mode ", b"new mode ")):
                if not line.rpartition(b" ")[2].startswith(b"100"):
                    raise Rejected(f"its {self.what} holds links or submodules: {new or old}")
                if line.startswith(b"new file"):
                    old = None
                elif line.startswith(b"deleted"):
                    new = None
            elif line.startswith(b"rename from "):
                old, renamed = self._path(line[len(b"rename from ") :]), True
            elif line.startswith(b"rename to "):
                new, renamed = self._path(line[len(b"rename to ") :]), True
            elif line.strip() and not line.startswith(_SILENT):
                self.at -= 1
                raise self._strange()
        return old, new, renamed

    def _both(self, text: bytes) -> tuple[str | None, str | None]:
        """The two paths of a ``diff --git`` line, which are equal unless it is a rename."""
        if text.startswith(b'"'):
            end = re.match(rb'"(?:[^"\\]|\\.)*"', text)
            first, second = (end[0], text[end.end() + 1 :]) if end else (text, b"")
        else:
            half = (len(text) - 1) // 2
            first, second = text[:half], text[half + 1 :]
            if first[2:] != second[2:]:  # a rename; its own lines state the paths
                return "", ""
        return self._side(first, b"a/", ""), self._side(second, b"b/", "")

    def _side(self, text: bytes, prefix: bytes, stated: str | None) -> str | None:
        """The path of ``a/PATH`` or ``b/PATH``; None for ``/dev/null``. ``stated``: the path from an earlier line."""
        text = text.partition(b"\t")[0].rstrip(b"\r") if not text.startswith(b'"') else text
        if text == b"/dev/null":
            return None
        plain = _unquoted(text)
        if not plain.startswith(prefix):
            raise Rejected(f"its {self.what} is no diff of git: {_shown(text)} does not begin with {prefix.decode()}")
        path = self._path(plain[2:])
        if stated and stated != path:
            raise Rejected(f"its {self.what} is no diff of git: it says {stated} and {path} of one file")
        return path

    def _path(self, text: bytes) -> str:
        name = _unquoted(text).decode("utf-8", "surrogateescape")
        parts = name.split("/")
        if "\0" in name or any(p in ("", ".", "..") or p.lower() == ".git" for p in parts):
            raise Rejected(f"its {self.what} leaves the repository: {_shown(text)}")
        return name

    def _hunk(self) -> _Hunk:
        match = _HUNK.match(self._here())
        if match is None:
            raise self._strange()
        self.at += 1
        hunk = _Hunk(int(match[1]))
        last: tuple[list[bytes], ...] = ()
        olds, news = (1 if text is None else int(text) for text in (match[2], match[4]))
        while len(hunk.old) < olds or len(hunk.new) < news or self._here().startswith(_NO_END):
            line = self._next() or b" "  # some tools drop the space of an empty line
            sides = {b" ": (hunk.old, hunk.new), b"-": (hunk.old,), b"+": (hunk.new,)}.get(line[:1])
            if line.startswith(_NO_END) and last:
                for side in last:
                    side[-1] = side[-1].removesuffix(b"\n")
                last = ()
            elif sides is None:
                self.at -= 1
                raise self._strange()
            else:
                for side in sides:
                    side.append(line[1:] + b"\n")
                last = sides
        if len(hunk.old) != olds or len(hunk.new) != news:
            raise self._strange()
        return hunk

    def _here(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def _next(self) -> bytes:
        if self.at >= len(self.lines):
            raise Rejected(f"its {self.what} is no diff of git: it ends too early")
        self.at += 1
        return self.lines[self.at - 1]

    def _strange(self) -> Rejected:
        return Rejected(f"its {self.what} is no diff of git: line {self.at + 1}: {_shown(self._here())}")


def _unquoted(text: bytes) -> bytes:
    if not (len(text) > 1 and text.startswith(b'"') and text.endswith(b'"')):
        return text

    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else _PLAIN.get(code, code)

    return _ESCAPE.sub(plain, text[1:-1])


def _shown(text: bytes) -> str:
    return repr(text[:80].decode("utf-8", "replace"))
