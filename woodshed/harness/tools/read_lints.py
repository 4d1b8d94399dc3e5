"""Static checks: ruff where the box has it, else syntax, unused imports, undefined names."""

from __future__ import annotations

from pydantic import Field

from woodshed.harness.boxed import program
from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session

from .base import Arguments, Tool, ToolResult, clip, clip_lines, decode

TIMEOUT = 20.0
RUFF = 'command -v ruff >/dev/null || exit 127; exec ruff check --no-cache --output-format=concise -- "$@"'


class ReadLintsArgs(Arguments):
    paths: list[str] = Field(default=["."], description="files or folders", min_length=1, max_length=50)


class ReadLints(Tool):
    name = "read_lints"
    verb = "lint"
    read_only = True
    Args = ReadLintsArgs

    def description(self) -> str:
        return f"Check Python files without running them. At most {self.settings.output.matches} findings."

    async def run(self, args: ReadLintsArgs, session: Session) -> ToolResult:
        paths = [session.path(path) for path in args.paths]
        timeout = session.time_left(TIMEOUT)
        done = await session.box.exec(["/bin/sh", "-c", RUFF, "sh", *(f"./{p}" for p in paths)], timeout=timeout)
        if done.returncode not in (0, 1):
            done = await session.box.exec_python(program("lint", {"paths": paths}), timeout=timeout)
        if done.timed_out:
            raise ToolError("timeout", f"the check took longer than {TIMEOUT:g} s; name fewer files")
        text = decode(done.stdout).rstrip("\n")
        if done.returncode == 3:
            raise ToolError("not_found", text)
        if done.returncode not in (0, 1):
            raise ToolError("io_error", f"the check ended with code {done.returncode}")
        lines = clip_lines(text.split("\n"), self.settings.output.matches)
        return ToolResult(clip("\n".join(lines), self.settings.output.chars) or "[no findings]")
