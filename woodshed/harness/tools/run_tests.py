"""Run the task's own test command."""

from __future__ import annotations

import shlex
from dataclasses import replace

from woodshed.harness.boxed import program
from woodshed.harness.errors import ToolError
from woodshed.harness.session import Session
from woodshed.sandbox.protocol import ExecResult

from .base import NoArguments, Tool, ToolResult, decode
from .run_command import FLOOD, ran


class RunTests(Tool):
    """``python FILE.py`` runs in the box's warm interpreter, which saves the start-up; any other command in a shell."""

    name = "run_tests"
    verb = "test"
    Args = NoArguments

    def description(self) -> str:
        cap = self.settings.output.test_chars
        return f"Run the project's tests and read what they print, at most {cap} characters."

    async def run(self, args: NoArguments, session: Session) -> ToolResult:
        if not session.test_command:
            raise ToolError("no_tests", "this task names no test command; use run_command")
        session.effort.test_runs += 1
        timeout = session.time_left(self.settings.command.test_timeout)
        script = python_script(session.test_command)

        async def execute() -> ExecResult:
            if script is None:
                return await session.box.exec(session.test_command, timeout=timeout, max_output=FLOOD)
            return await session.box.exec_python(program("script", {"path": script}), timeout=timeout, max_output=FLOOD)

        if session.reuse is None:
            done = await execute()
        else:
            done = await session.reuse(session.box, session.test_command, execute)
        text = decode(done.stdout).strip("\n")
        # What a script that succeeds writes to stderr is left out; if it fails, stderr has its traceback or report.
        if not text.strip() or (done.stderr and (script is None or done.returncode)):
            text = "\n".join(part for part in (text, decode(done.stderr).strip("\n")) if part)
        code = done.returncode
        if text.strip() and code > 0 and not (done.timed_out or done.out_of_memory or done.truncated):
            # The output of the tests already tells how they ended, so no exit code is added; a signal is not in it.
            done.returncode = 0
        return replace(ran(text, done, timeout, self.settings.output.test_chars), exit_code=code)


def python_script(command: str) -> str | None:
    """``FILE.py`` if the command is exactly ``python FILE.py`` or ``python3 FILE.py``, else None."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if len(words) == 2 and words[0] in ("python", "python3") and words[1].endswith(".py"):
        return words[1]
    return None
