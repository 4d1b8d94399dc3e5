"""Search and replace in one file: exact, and once unless told otherwise. Nothing is repaired silently."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.clip import clip
from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult
from .read_file import numbered
from .syntax import breaks_syntax

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


def encode(text: str) -> bytes:
    """UTF-8. Raises ToolError for lone surrogates, which JSON can carry and files cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("invalid_arguments", "the text has lone surrogates, which UTF-8 cannot hold") from None
