"""Run a shell command in the box."""

from __future__ import annotations

import secrets

from pydantic import Field

from woodshed.harness.errors import ToolError, error_text
from woodshed.harness.session import Session
from woodshed.sandbox.protocol import ExecResult

from .base import Arguments, Tool, ToolResult, clip, decode

MAX_COMMAND = 32_768
FLOOD = 1 << 20

WRAPPER = """
__command=$1; __mark=$2; __cwd=$3; set --
[ -z "$__cwd" ] || cd -- "$__cwd" 2>/dev/null || echo "[the working directory is gone; back in $PWD]"
trap 'printf "\\n%s%s" "$__mark" "$PWD"' EXIT
exec 2>&1
eval "$__command"
"""
"""Joins stdout and stderr in order and reports the final working directory. A command that changes the trap or prints
the mark can only falsify the working directory of its own next command."""


class RunCommandArgs(Arguments):
    command: str = Field(description="for /bin/sh", min_length=1, max_length=MAX_COMMAND)
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="seconds")


class RunCommand(Tool):
    name = "run_command"
    verb = "run"
    template = "{command}"
    Args = RunCommandArgs

    def description(self) -> str:
        command, output = self.settings.command, self.settings.output
        where = "The working directory carries over." if command.persistent_cwd else "Starts in the workspace."
        return (
            f"Run a shell command and read its output, at most {output.chars} characters (head and tail). {where} "
            f"Ends after {command.timeout:g} s unless timeout says otherwise (at most {command.max_timeout:g}). "
            "No terminal, no network."
        )

    async def run(self, args: RunCommandArgs, session: Session) -> ToolResult:
        if "\x00" in args.command:
            raise ToolError("invalid_arguments", "a command has no NUL")
        settings = self.settings.command
        timeout = session.time_left(min(args.timeout or settings.timeout, settings.max_timeout))
        mark = f"cwd-{secrets.token_hex(12)}:"
        argv = ["/bin/sh", "-c", WRAPPER, "sh", _sayable(args.command), mark, session.cwd]
        done = await session.box.exec(argv, timeout=timeout, max_output=FLOOD)
        text, found, cwd = decode(done.stdout).rpartition("\n" + mark)
        if not found:
            text = cwd
        elif settings.persistent_cwd and cwd.startswith("/") and len(cwd) < 4096:
            session.cwd = cwd
        if done.stderr:
            text += decode(done.stderr)
        return ran(text.rstrip("\n"), done, timeout, self.settings.output.chars)


def ran(text: str, done: ExecResult, timeout: float, limit: int) -> ToolResult:
    """Return the output of a program, and how the program ended unless its exit code was 0."""
    text = clip(text, limit)
    if done.truncated:
        text += "\n[output stopped here: too long]"
    if done.timed_out:
        line = error_text("timeout", f"stopped after {timeout:.3g} s")
        return ToolResult(f"{text}\n{line}" if text else line, "timeout", done.returncode)
    if done.out_of_memory:
        line = error_text("out_of_memory", "stopped by the box's memory limit")
        return ToolResult(f"{text}\n{line}" if text else line, "out_of_memory", done.returncode)
    if done.returncode:
        end = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return ToolResult(f"{text}\n[{end}]" if text else f"[{end}]", exit_code=done.returncode)
    return ToolResult(text or "[no output]", exit_code=0)


def _sayable(command: str) -> str:
    try:
        command.encode()
    except UnicodeEncodeError:
        raise ToolError("invalid_arguments", "the command has lone surrogates, which UTF-8 cannot hold") from None
    return command
