"""Shell lines as the terms read them: comments and here-documents out of the way, then words and operators."""

from __future__ import annotations

import re
import shlex

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
