"""Replace one whole line: the edit of tiny policies."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult
from .edit_file import apply


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
        path = session.path(args.path)
        before = await session.read_text(path)
        lines = before.split("\n")
        count = len(lines) - (lines[-1] == "")
        if not 1 <= args.line <= count:
            raise ToolError("no_such_line", f"{args.path} has {count} lines")
        if lines[args.line - 1] == args.text:
            raise ToolError("no_change", f"line {args.line} already reads so")
        lines[args.line - 1] = args.text
        height = args.text.count("\n") + 1
        return await apply(self, session, path, before, "\n".join(lines), args.line, height)
