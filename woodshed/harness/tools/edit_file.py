"""Edits of one file: exact search and replace; for tiny policies, the replacement of one line or of words in it.

Edits that break the syntax of a Python file are refused. Parsing runs no code, so it happens on the host.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import lru_cache

from pydantic import Field

from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session
from woodshed.record.python_source import parse_python

from .base import Arguments, Tool, ToolResult, clip
from .read_file import numbered

MAX_SOURCE = 200_000


@lru_cache(maxsize=2048)
def syntax_error(source: str) -> str | None:
    """Return the syntax error and its line, or None. Source too long or too nested to parse counts as correct."""
    if len(source) > MAX_SOURCE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse_python(source)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})"
    except ValueError as error:
        return str(error)
    except (RecursionError, MemoryError, OverflowError):
        return None
    return None


def breaks_syntax(path: str, before: str, after: str) -> str | None:
    """Return the syntax error that an edit adds to a Python file; None if it adds none or the file had one before."""
    if not path.endswith((".py", ".pyi")):
        return None
    error = syntax_error(after)
    return error if error is not None and syntax_error(before) is None else None


AROUND = 3


class EditFileArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")
    old_string: str = Field(description="text to replace, exactly as it is in the file")
    new_string: str = Field(description="text to put there")
    replace_all: bool = Field(default=False, description="replace every occurrence")


class EditFile(Tool):
    name = "edit_file"
    Args = EditFileArgs

    def description(self) -> str:
        return (
            "Replace text in a file. old_string must match exactly, whitespace included, and only once "
            "unless replace_all is true."
        )

    async def run(self, args: EditFileArgs, session: Session) -> ToolResult:
        path = session.path(args.path)
        before = await session.read_text(path)
        if args.old_string == args.new_string:
            raise ToolError("no_change", "old_string and new_string are the same")
        found = before.count(args.old_string) if args.old_string else 0
        if found == 0:
            raise ToolError("no_match", f"old_string is not in {args.path}; read the file again")
        if found > 1 and not args.replace_all:
            raise ToolError("multiple_matches", f"old_string is {found} times in {args.path}; add lines around it")
        after = before.replace(args.old_string, args.new_string)
        first = before[: before.index(args.old_string)].count("\n") + 1
        return await apply(self, session, path, before, after, first, args.new_string.count("\n") + 1)


async def apply(tool: Tool, session: Session, path: str, before: str, after: str, first: int, count: int) -> ToolResult:
    """Write an edit and show it: ``count`` lines from line ``first`` of the new text and a few around them."""
    problem = breaks_syntax(path, before, after) if tool.settings.check_syntax else None
    if problem is not None:
        raise ToolError("syntax_error", f"not written: {problem}")
    await session.change(path, encode(before), encode(after))
    output = tool.settings.output
    if not output.snippet:
        return ToolResult("ok")
    start = max(1, first - AROUND)
    lines = after.split("\n")[start - 1 : first + count - 1 + AROUND]
    return ToolResult(f"ok\n{clip(numbered(lines, start, output.separator), output.chars)}")


async def change_line(
    tool: Tool, session: Session, name: str, number: int, replace: Callable[[str], str]
) -> ToolResult:
    """Replace line ``number`` (from 1) of the file ``name`` by the result of ``replace``.

    Raises ToolError ``no_such_line``, and what ``replace`` raises.
    """
    path = session.path(name)
    before = await session.read_text(path)
    lines = before.split("\n")
    count = len(lines) - (lines[-1] == "")
    if not 1 <= number <= count:
        raise ToolError("no_such_line", f"{name} has {count} lines")
    lines[number - 1] = replace(lines[number - 1])
    height = lines[number - 1].count("\n") + 1
    return await apply(tool, session, path, before, "\n".join(lines), number, height)


def encode(text: str) -> bytes:
    """Encode as UTF-8. Raises ToolError for lone surrogates, which JSON can contain and files cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("invalid_arguments", "the text has lone surrogates, which UTF-8 cannot hold") from None


class EditLineArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")
    line: int = Field(description="number of the line to replace, from 1")
    text: str = Field(description="the whole new line with its indentation")


class EditLine(Tool):
    name = "edit_line"
    verb = "edit"
    template = "{path}\n{line}{text}"
    Args = EditLineArgs

    def description(self) -> str:
        return "Replace one line of a file. The text is the whole new line, indentation included."

    async def run(self, args: EditLineArgs, session: Session) -> ToolResult:
        def replace(line: str) -> str:
            if line == args.text:
                raise ToolError("no_change", f"line {args.line} already reads so")
            return args.text

        return await change_line(self, session, args.path, args.line, replace)


class EditWordsArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")
    line: int = Field(description="number of the line to change, from 1")
    old: str = Field(description="words of that line to replace")
    new: str = Field(description="words to put there")


class EditWords(Tool):
    """For a policy that copies whole lines badly: it has to write only what differs."""

    name = "edit_words"
    verb = "edit"
    template = "{path}\n{line} {old}\t {new}"
    Args = EditWordsArgs

    def description(self) -> str:
        return "Replace words or operators in one line of a file. They must occur in it exactly once, as whole words."

    async def run(self, args: EditWordsArgs, session: Session) -> ToolResult:
        def replace(line: str) -> str:
            if args.old == args.new:
                raise ToolError("no_change", "old and new are the same")
            found = occurrences(line, args.old)
            if not found:
                raise ToolError("no_match", f"line {args.line} has no {args.old!r}")
            if len(found) > 1:
                raise ToolError("multiple_matches", f"line {args.line} has it {len(found)} times; add words around it")
            return line[: found[0]] + args.new + line[found[0] + len(args.old) :]

        return await change_line(self, session, args.path, args.line, replace)


_OPERATOR = r"[<>=!*/]"


def occurrences(line: str, words: str) -> list[int]:
    """Find whole words and operators in ``line``: ``x`` is not in ``xs``, and ``<`` is not in ``<=``."""
    if not words:
        return []
    start = r"(?<!\w)" if re.match(r"\w", words) else rf"(?<!{_OPERATOR})" if re.match(_OPERATOR, words) else ""
    end = r"(?!\w)" if re.search(r"\w\Z", words) else rf"(?!{_OPERATOR})" if re.search(rf"{_OPERATOR}\Z", words) else ""
    return [found.start() for found in re.finditer(f"{start}{re.escape(words)}{end}", line)]
