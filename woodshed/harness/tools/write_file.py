"""Create, overwrite and delete files."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.errors import ToolError
from woodshed.harness.session import MAX_FILE, Session

from .base import Arguments, Tool, ToolResult
from .edit_file import breaks_syntax, encode


class WriteFileArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")
    content: str = Field(description="the whole content", max_length=MAX_FILE)


class WriteFile(Tool):
    name = "write_file"
    verb = "write"
    template = "{path}\n{content}"
    Args = WriteFileArgs

    def description(self) -> str:
        return "Create a file or replace its whole content; missing folders are made."

    async def run(self, args: WriteFileArgs, session: Session) -> ToolResult:
        path = session.path(args.path)
        after = encode(args.content)
        before = await _content(session, path)
        if before == after:
            raise ToolError("no_change", f"{args.path} already reads so")
        if before is not None and self.settings.check_syntax:
            problem = breaks_syntax(path, before.decode("utf-8", "replace"), args.content)
            if problem is not None:
                raise ToolError("syntax_error", f"not written: {problem}")
        await session.change(path, before, after)
        return ToolResult("ok" if not self.settings.output.snippet else f"ok: {len(after)} bytes")


class DeleteFileArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")


class DeleteFile(Tool):
    name = "delete_file"
    verb = "delete"
    template = "{path}"
    Args = DeleteFileArgs

    def description(self) -> str:
        return "Delete one file."

    async def run(self, args: DeleteFileArgs, session: Session) -> ToolResult:
        path = session.path(args.path)
        await session.change(path, await session.read(path), None)
        return ToolResult("ok")


async def _content(session: Session, path: str) -> bytes | None:
    try:
        return await session.read(path)
    except FileNotFoundError:
        return None
