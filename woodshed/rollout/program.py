"""Runs an unmodified external agent: a command that runs in the box and reaches the gateway from there.

The program reaches the gateway at ``URL``, with a key that is valid for this trajectory only. The gateway records every
request and reply of the program, token by token; this module sees only the program's end and its exit code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from woodshed.harness.settings import HarnessSettings, ProgramSettings
from woodshed.sandbox.faults import is_silent
from woodshed.sandbox.protocol import BoxError, Sandbox, SandboxError

PORT = 7707
URL = f"http://127.0.0.1:{PORT}"
PLACE = "/opt/harness"
"""Folder of the program's packages and files in the box; its ``bin`` is on the program's PATH."""

_TASK, _LOG = "/tmp/task.md", "/tmp/harness.log"
_TAIL = 1500
"""Number of bytes that are kept from the end of the output."""
_LONG = 30_000
"""Maximum characters of an instruction in an environment variable; the kernel allows 128 KiB for each."""


@dataclass(frozen=True)
class ProgramExit:
    """The end of a program. ``output``: the last bytes of its output, which code in the box could have changed."""

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float
    output: str

    def problem(self) -> str:
        """Describe what went wrong; '' for exit code 0."""
        said = self.output or "no output"
        if self.timed_out:
            return f"ended after {self.seconds:.0f} s: {said}"
        if self.out_of_memory:
            return "ran out of the box's memory"
        return f"exit code {self.returncode}: {said}" if self.returncode else ""


async def run_program(
    program: ProgramSettings, settings: HarnessSettings, instruction: str, box: Sandbox, *, key: str, model: str
) -> ProgramExit:
    """Run the program until it ends or ``limits.wall_seconds`` are over. Raises only SandboxError."""
    started = time.monotonic()
    instruction = instruction.replace("\0", "").encode("utf-8", "replace").decode()
    try:
        await box.put({_TASK: instruction.encode()})
    except BoxError as error:  # no code of the policy has run in this box yet, so the failure is the host's
        raise SandboxError(f"the task cannot be put into its box: {error}") from error
    # Output goes to a file: a program that prints without end reaches the limit of file sizes and fills no pipe.
    command = f'export PATH="{PLACE}/bin:$PATH"\n{{ {program.command}\n}} > {_LOG} 2>&1 < /dev/null'
    try:
        done = await box.exec(
            command,
            cwd=settings.workdir,
            env={**environment(key, model, instruction), **program.env},
            timeout=settings.limits.wall_seconds,
            max_output=4096,
        )
        said = await box.exec(["/usr/bin/tail", "-c", str(_TAIL), _LOG], timeout=10.0, max_output=2 * _TAIL)
    except BoxError as error:  # the program ended its box
        silent = is_silent(error)
        return ProgramExit(
            returncode=-9,
            timed_out=silent,
            out_of_memory=not silent,
            seconds=time.monotonic() - started,
            output=f"the box is gone: {error.strerror}",
        )
    return ProgramExit(
        returncode=done.returncode,
        timed_out=done.timed_out,
        out_of_memory=done.out_of_memory,
        seconds=done.seconds,
        output=(said.stdout or done.stderr).decode("utf-8", "replace").strip(),
    )


def environment(key: str, model: str, instruction: str) -> Mapping[str, str]:
    """Return environment variables with gateway, key and task, for the vendors' clients and for the command itself."""
    return {
        "OPENAI_BASE_URL": f"{URL}/v1",
        "OPENAI_API_BASE": f"{URL}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_API_KEY": key,
        "WOODSHED_MODEL": model,
        "WOODSHED_TASK": instruction if len(instruction) < _LONG else f"Do what {_TASK} says.",
        "WOODSHED_TASK_FILE": _TASK,
    }
