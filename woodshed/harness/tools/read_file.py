"""Show a file with line numbers."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult, clean, clip


class ReadFileArgs(Arguments):
    path: str = Field(description="file, relative to the workspace")
    offset: int = Field(default=1, ge=1, description="first line to show, from 1")
    limit: int | None = Field(default=None, ge=1, description="most lines to show")


def numbered(lines: list[str], first: int, separator: str) -> str:
    """Number the lines. With an empty separator each line starts with a newline (``\\n1def f(x):``)."""
    if separator:
        return "\n".join(f"{n}{separator}{line}" for n, line in enumerate(lines, first))
    return "".join(f"\n{n}{line}" for n, line in enumerate(lines, first))


class ReadFile(Tool):
    name = "read_file"
    verb = "read"
    template = "{path}"
    read_only = True
    Args = ReadFileArgs

    def description(self) -> str:
        cap = self.settings.output
        return f"Show a text file with line numbers, at most {cap.file_lines} lines and {cap.chars} characters a call."

    async def run(self, args: ReadFileArgs, session: Session) -> ToolResult:
        output = self.settings.output
        data = await session.read(session.path(args.path))
        lines = clean(data.decode("utf-8", "replace")).split("\n")
        if lines[-1] == "":
            lines.pop()
        start = args.offset - 1
        count = min(args.limit or output.file_lines, output.file_lines)
        shown = lines[start : start + count]
        if not shown:
            return ToolResult("[empty file]" if not lines else f"[the file has {len(lines)} lines]")
        text = clip(numbered(shown, args.offset, output.separator), output.chars)
        rest = len(lines) - start - len(shown)
        return ToolResult(text + (f"\n[... {rest} more lines ...]" if rest > 0 else ""))
