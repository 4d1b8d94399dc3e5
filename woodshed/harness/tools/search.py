"""Search by content, by name, by folder. The policy's patterns are matched inside the box, with a time limit."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.boxed import program
from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult, clip, clip_lines, decode

TIMEOUT = 10.0
MAX_PATTERN = 1000


class GrepArgs(Arguments):
    pattern: str = Field(description="Python regular expression", max_length=MAX_PATTERN)
    path: str = Field(default=".", description="file or folder to search")
    glob: str = Field(default="", description="only files whose name matches, as *.py", max_length=MAX_PATTERN)
    ignore_case: bool = False


class Grep(Tool):
    name = "grep"
    verb = "grep"
    template = "{pattern}"
    read_only = True
    Args = GrepArgs

    def description(self) -> str:
        cap = self.settings.output.matches
        return f"Search files for a regular expression. Answers path:line:text, at most {cap} lines."

    async def run(self, args: GrepArgs, session: Session) -> ToolResult:
        output = self.settings.output
        arguments = {
            "pattern": args.pattern,
            "path": session.path(args.path),
            "glob": args.glob,
            "ignore_case": args.ignore_case,
            "matches": output.matches,
            "line_chars": output.line_chars,
        }
        return await _search(self, session, "grep", arguments)


class GlobArgs(Arguments):
    pattern: str = Field(description="as **/*.py or src/*.toml, relative to path", max_length=MAX_PATTERN)
    path: str = Field(default=".", description="folder to start from")


class Glob(Tool):
    name = "glob"
    verb = "glob"
    template = "{pattern}"
    read_only = True
    Args = GlobArgs

    def description(self) -> str:
        return f"Find files by name pattern, at most {self.settings.output.matches}, in order of name."

    async def run(self, args: GlobArgs, session: Session) -> ToolResult:
        base = session.path(args.path)
        if args.pattern.startswith("/") or ".." in args.pattern.split("/") or "\x00" in args.pattern:
            raise ToolError("path_outside_workspace", "a pattern is relative to path and has no ..")
        arguments = {"pattern": args.pattern, "path": base, "matches": self.settings.output.matches}
        return await _search(self, session, "globbing", arguments)


class ListDirArgs(Arguments):
    path: str = Field(default=".", description="folder, relative to the workspace")


class ListDir(Tool):
    name = "list_dir"
    verb = "list"
    read_only = True
    Args = ListDirArgs

    def description(self) -> str:
        return f"List a folder, at most {self.settings.output.matches} entries; folders end with a slash."

    async def run(self, args: ListDirArgs, session: Session) -> ToolResult:
        entries = await session.box.list(session.path(args.path))
        names = [name + ("/" if kind == "dir" else "") for name, kind, _ in entries]
        names = [name.encode("utf-8", "replace").decode().replace("\n", "\\n") for name in names]
        lines = clip_lines(names, self.settings.output.matches)
        return ToolResult(clip("\n".join(lines), self.settings.output.chars) or "[empty folder]")


async def _search(tool: Tool, session: Session, name: str, arguments: dict[str, object]) -> ToolResult:
    source = program(name, arguments)
    done = await session.box.exec_python(source, timeout=session.time_left(TIMEOUT), max_output=1 << 20)
    if done.timed_out:
        raise ToolError("timeout", f"the search took longer than {TIMEOUT:g} s; narrow it")
    text = decode(done.stdout).rstrip("\n")
    if done.returncode == 2:
        raise ToolError("invalid_pattern", text)
    if done.returncode == 3:
        raise ToolError("not_found", text)
    if done.returncode != 0:
        raise ToolError("io_error", f"the search ended with code {done.returncode}")
    return ToolResult(clip(text, tool.settings.output.chars) or "[no match]")
