"""Shell lines as the terms read them: words, commands and pipelines, and which commands only read.

Comments and here-documents are taken out. A line may be written to attack this parser, so it never runs anything and
raises nothing but ValueError.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

READ = frozenset({"cat", "head", "tail", "less", "more", "nl", "tac", "bat", "od", "xxd", "sed", "awk", "cut"})
SEARCH = frozenset({"grep", "egrep", "fgrep", "rg", "ag", "ack", "find", "fd"})
LIST = frozenset({"ls", "tree", "dir"})
_TELL = frozenset({"echo", "printf", "pwd", "true", "false", ":", "test", "[", "wc", "sort", "uniq", "diff", "which"})
"""Other commands that change nothing."""
_GIT_READS = frozenset({"status", "diff", "log", "show", "blame", "grep", "ls-files", "rev-parse"})
_WRAPPERS = frozenset({"env", "exec", "nice", "time", "command", "busybox", "sudo", "nohup", "stdbuf", "xargs"})
_FIND_ACTS = frozenset({"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fls", "-x", "-X", "--exec"})
LONGEST = 8192
"""Maximum characters of a line that are read."""
_IN_PLACE = re.compile(r"-[a-zA-Z]*i|--in-place")
HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w++)\1([^\n]*+)\n(.*?)(?:\n[ \t]*\2(?=\n|$)|\Z)", re.S)
"""A here-document; group 3 is the rest of its line, group 4 its text."""
_PARTS = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?:^|(?<=[\s;&|()<>]))#[^\n]*""", re.S)
"""Quoted text, an escaped character, or a comment: ``#`` at the start of a word, up to the end of its line."""


def tokens(command: str) -> list[str]:
    """Return words and operators of a shell line; a line end is ``;``. Raises ValueError if a quote is open."""
    text = _PARTS.sub(lambda part: "" if part[0].startswith("#") else part[0], HEREDOC.sub(r"\3", command))
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def pipelines(command: str) -> Iterator[list[list[str]]]:
    """Yield the pipelines of a line as lists of commands; a line with an open quote is split at blanks."""
    try:
        listed = tokens(command)
    except ValueError:
        listed = HEREDOC.sub(r"\3", command).split()
    pipeline: list[list[str]] = [[]]
    for token in [*listed, ";"]:
        if token in ("|", "|&"):
            pipeline.append([])
        elif token and set(token) <= set("();|&"):
            yield pipeline
            pipeline = [[]]
        else:
            pipeline[-1].append(token)


def unwrapped(words: list[str]) -> list[str]:
    """Return a command without variables, wrappers and the folder of its program."""
    while words:
        name = words[0].rpartition("/")[2]
        if re.match(r"\w+=", words[0]) or name in _WRAPPERS:
            words = words[1:]
        elif name == "timeout":
            words = words[2:]
        else:
            return [name, *words[1:]]
    return []


def redirects(words: list[str]) -> bool:
    """Return whether standard output goes to a file (other than /dev/null)."""
    pairs = zip(words, words[1:], [*words[2:], ""])
    return any(op in (">", ">>", ">|", "&>") and before != "2" and to != "/dev/null" for before, op, to in pairs)


def edits_in_place(words: list[str]) -> bool:
    """Return whether a command is ``sed -i``."""
    return words[0] == "sed" and any(_IN_PLACE.match(word) for word in words)


def only_reads(line: str) -> bool:
    """Return whether no command of a line can change a file or the working directory. Unknown programs can."""
    if len(line) > LONGEST:
        return False
    commands = (unwrapped(words) for pipeline in pipelines(line) for words in pipeline)
    return all(_only_reads(words) for words in commands if words)


def _only_reads(words: list[str]) -> bool:
    name, rest = words[0], words[1:]
    if redirects(words) or edits_in_place(words) or any("$(" in word or "`" in word for word in words):
        return False
    if name == "git":
        return next((word for word in rest if not word.startswith("-")), "") in _GIT_READS
    if name in ("find", "fd"):
        return _FIND_ACTS.isdisjoint(rest)
    if name == "awk":
        return not any(">" in word or "system(" in word for word in rest)
    return name in READ | SEARCH | LIST | _TELL and not (name in ("sort", "tree") and "-o" in rest)
