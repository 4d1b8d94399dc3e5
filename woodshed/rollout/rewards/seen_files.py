"""Which files of the workspace an agent has seen the text of: by its tools, or by commands that show text.

A file that a command only lists, stages or looks for is not seen. Rules like these can be evaded:
``cat a.py | true`` counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import pairwise

from woodshed.harness.errors import ToolError
from woodshed.harness.session import confine
from woodshed.record.trajectory import ToolEvent

from .shell_lines import LONGEST, READ, SEARCH, edits_in_place, pipelines, unwrapped
from .tool_collapse import INTERPRETER, SHELL, work_in_shell

_SHOW_NO_TEXT = frozenset({"list_dir", "glob", "grep", "read_lints"})
"""Tools whose ``path`` is not shown; what ``grep`` shows is in its output."""
_KEYWORDS = frozenset({"do", "then", "else", "{", "!"})
_GREP = SEARCH - {"find", "fd"}
_NAMES_ONLY = re.compile(r"-[a-zA-Z]*[lLcq][a-zA-Z]*|--(files.*|count.*|quiet|silent)")
_GIT_SHOWS = frozenset({"diff", "show", "blame", "log"})
_PATTERN = re.compile(r"[*?\[]")


class SeenFiles:
    """Collects, call by call, what an agent saw. ``workdir``: the workspace, to which paths are relative."""

    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        self._paths: set[str] = set()
        self._named: set[tuple[str, bool]] = set()
        self._patterns: set[tuple[str, bool]] = set()
        """Words of commands that name files, and whether they may be relative to any folder."""
        self._folders: set[str] = set()
        """Folders of which a command showed every file."""
        self._moved = False
        """True once a command has changed the working directory."""
        self._output, self._found = "", ""

    def update(self, event: ToolEvent) -> None:
        path = path_of(event, self.workdir)
        if event.error is None and path and event.name not in _SHOW_NO_TEXT:
            self._paths.add(path)
        if event.name == SHELL:
            self._command(str((event.arguments or {}).get("command", ""))[:LONGEST], event.result)
        if event.name in (SHELL, "grep"):
            self._output += f"\n{event.result}"

    def __contains__(self, path: str) -> bool:
        parts = path.split("/")
        ends = ["/".join(parts[i:]) for i in range(len(parts))]
        if path in self._paths or (path, False) in self._named or any((end, True) in self._named for end in ends):
            return True
        if any(_matches(pattern, parts, anywhere) for pattern, anywhere in self._patterns):
            return True
        if any(folder == "." or path.startswith(f"{folder}/") for folder in self._folders):
            return True
        places = ends if self._moved else ends[:1]
        start = rf"(?<![\w./-])(?:\./|{re.escape(self.workdir)}/)?(?:{'|'.join(map(re.escape, places))})"
        # A line of text with its place. A count of matches (``grep -c``) has no text.
        quoted = re.search(rf"{start}[:-]\d+[:-]", self._output)
        return bool(quoted or re.search(rf"^{start}:(?!\d*$)", self._found, re.MULTILINE))

    def _command(self, line: str, result: str) -> None:
        searches = script = others = False
        every: list[str] = []
        for raw in (words for pipeline in pipelines(line) for words in pipeline):
            every += raw
            words = unwrapped([word for word in raw if word not in _KEYWORDS])
            if not words:
                continue
            self._moved |= words[0] in ("cd", "pushd")
            searches |= words[0] in _GREP or words[:2] == ["git", "grep"]
            script |= bool(INTERPRETER.fullmatch(words[0]))
            others |= _shows_others(raw, words)
            self._name(_shown(words), anywhere=self._moved)
        if searches:
            self._found += f"\n{result}"
        if script and not work_in_shell(line).isdisjoint(("read", "edit")):
            self._name(re.findall(r"[\w./-]+", line), anywhere=self._moved)
        if others:
            # The files come from a loop, ``find`` or a substitution, somewhere in the line.
            every = [word.rpartition("=")[2] for word in every]
            self._name(every, anywhere=True)
            if not any(map(_PATTERN.search, every)):
                self._folders.update(map(self._relative, every))

    def _name(self, words: Iterable[str], *, anywhere: bool) -> None:
        for word in map(self._relative, words):
            (self._patterns if _PATTERN.search(word) else self._named).add((word, anywhere))

    def _relative(self, word: str) -> str:
        """Return a word of a command as a path relative to the workspace, or to a folder of it that ``..`` left."""
        try:
            return confine(word, self.workdir)
        except ToolError:
            return re.sub(r"^(\.\./)+", "", word)


def _matches(pattern: str, parts: list[str], anywhere: bool) -> bool:
    """Return whether a shell's pattern matches the path of these parts, or with ``anywhere`` its last ones."""
    wanted = pattern.split("/")
    if anywhere:
        parts = parts[-len(wanted) :]
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def path_of(event: ToolEvent, workdir: str) -> str:
    """Return the path argument of a call, relative to the workspace; empty if there is none."""
    path = (event.arguments or {}).get("path")
    try:
        return confine(path, workdir) if isinstance(path, str) else ""
    except ToolError:
        return ""


def _shows_others(raw: list[str], words: list[str]) -> bool:
    """Return whether a command shows files that its own words do not name."""
    if words[0] in ("find", "fd"):
        acts = [after for word, after in pairwise(words) if word in ("-exec", "-execdir", "-x", "-X")]
        return any(act.rpartition("/")[2] in READ for act in acts)
    reads = words[0] in READ and not edits_in_place(words)
    return reads and ("xargs" in raw or any("$" in word or "`" in word for word in words[1:]))


def _shown(words: list[str]) -> Iterator[str]:
    """Yield the words of a command that may name files whose text it shows, or writes as a whole."""
    name, rest = words[0], words[1:]
    given = [word for word in rest if not word.startswith("-")]
    if name in READ and not edits_in_place(words):
        yield from given
    elif name == "tee":
        yield from (word for word in given if not _PATTERN.search(word))
    elif name in ("echo", "printf"):
        yield from (word for op, word in pairwise(words) if op == ">" and not _PATTERN.search(word))
    elif name in _GREP and not any(_NAMES_ONLY.fullmatch(word) for word in rest):
        # The first is the pattern. With several files each line that is shown names its own (``_found``).
        yield from (word for word in given[1:] if not _PATTERN.search(word))
    elif name == "git" and given and given[0] in _GIT_SHOWS:
        yield from (part for word in given[1:] for part in word.split(":") if not _PATTERN.search(part))
