"""A coding agent of others, unmodified, in place of ours: a command that runs in the box and finds the gateway there.

The box reaches nothing but the gateway, at ``URL``, under a key that is good for this one trajectory. What the program
asks and is answered is recorded there, token by token; its end and its exit code are all that is seen of it here.
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
"""Where the program's packages and files are in the box; their scripts in ``bin`` are on its PATH."""

_TASK, _LOG = "/tmp/task.md", "/tmp/harness.log"
_TAIL = 1500
_LONG = 30_000
"""Characters; the kernel takes 128 KiB in one variable."""


@dataclass(frozen=True)
class Ended:
    """``output`` is the end of what it printed; the box could have changed it."""

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float
    output: str

    def why(self) -> str:
        """What went wrong, '' for exit code 0."""
        said = self.output or "no output"
        if self.timed_out:
            return f"ended after {self.seconds:.0f} s: {said}"
        if self.out_of_memory:
            return "ran out of the box's memory"
        return f"exit code {self.returncode}: {said}" if self.returncode else ""


async def run_program(
    program: ProgramSettings, settings: HarnessSettings, instruction: str, box: Sandbox, *, key: str, model: str
) -> Ended:
    """Run it to its end, or to ``limits.wall_seconds``. Raises SandboxError only."""
    started = time.monotonic()
    instruction = instruction.replace("\0", "").encode("utf-8", "replace").decode()
    try:
        await box.put({_TASK: instruction.encode()})
    except BoxError as error:  # nothing of the policy's has run in it
        raise SandboxError(f"the task cannot be put into its box: {error}") from error
    environment = {**surroundings(key, model, instruction), **program.env}
    # To a file: an agent that prints without end meets the limit of file sizes, not a full pipe.
    command = f'export PATH="{PLACE}/bin:$PATH"\n{{ {program.command}\n}} > {_LOG} 2>&1 < /dev/null'
    try:
        done = await box.exec(
            command, cwd=settings.workdir, env=environment, timeout=settings.limits.wall_seconds, max_output=4096
        )
        said = await box.exec(["/usr/bin/tail", "-c", str(_TAIL), _LOG], timeout=10.0, max_output=2 * _TAIL)
    except BoxError as error:  # the program did that to its box
        silent = is_silent(error)
        return Ended(-9, silent, not silent, time.monotonic() - started, f"the box is gone: {error.strerror}")
    output = (said.stdout or done.stderr).decode("utf-8", "replace").strip()
    return Ended(done.returncode, done.timed_out, done.out_of_memory, done.seconds, output)


def surroundings(key: str, model: str, instruction: str) -> Mapping[str, str]:
    """Environment variables by which the vendors' clients, and the command itself, learn where to go and what to do."""
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
