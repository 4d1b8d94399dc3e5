"""A persistent shell in a box of any backend: it keeps variables, working folder, functions and background jobs.

The shell is an ordinary process of the box that reads the numbers of commands from a named pipe. It has no state on the
host, so it is part of a full snapshot and goes on in every fork.
"""

from __future__ import annotations

import secrets
import shlex
from dataclasses import replace

from woodshed.sandbox.protocol import BoxError, ExecResult, Sandbox

# The shell sources every command, so that what it sets stays; with ``command`` a syntax error does not end the shell.
# The status file is renamed into place, so that it is complete once it exists.
_OPEN = """
cd {workdir} && mkdir {place} && mkfifo {place}/in && cat > {place}/loop <<'LOOP'
exec 3<>{place}/in
while read -r number <&3; do
  command . {place}/$number > {place}/$number.out 2> {place}/$number.err < /dev/null 3<&-
  echo $? > {place}/$number.tmp
  mv {place}/$number.tmp {place}/$number.status
done
LOOP
setsid {shell} {place}/loop > /dev/null 2>&1 < /dev/null & echo $! > {place}/pid
"""
# The sender opens the pipe for reading and writing: opening it for writing alone would wait for a reader for ever if
# the shell was killed after ``alive``. A command that does not fit on the disk is not sent.
_SEND = """
ended() {{ echo {ended}; exit 99; }}
alive() {{ read -r _ _ state _ < /proc/$(cat pid)/stat && [ "$state" != Z ]; }} 2> /dev/null
cd {place} 2> /dev/null && alive || ended
cat > {number} && exec 3<> in && echo {number} >&3 || {{ rm -f {number}; exit 1; }}
until [ -e {number}.status ]; do
  alive || [ -e {number}.status ] || ended
  sleep 0.01
done
cat {number}.out; cat {number}.err >&2
read -r status < {number}.status; rm -f {number} {number}.*; exit $status
"""


class ShellEnded(OSError):
    """The shell could not start or has ended. The box can cause that, so it is not a failure of the sandbox."""


class ShellSession:
    """One shell; runs one command after the other."""

    def __init__(self, box: Sandbox, place: str, number: int = 0) -> None:
        self.box, self.place = box, place
        self._number = number

    @staticmethod
    async def open(box: Sandbox, *, workdir: str = ".", shell: str = "/bin/sh") -> ShellSession:
        """Start a shell. Raises ShellEnded if the box cannot start one."""
        place = f"/tmp/.session-{secrets.token_hex(6)}"
        script = _OPEN.format(workdir=shlex.quote(workdir), place=place, shell=shlex.quote(shell))
        done = await box.exec(script, timeout=30)
        if done.returncode:
            raise ShellEnded(f"no shell session: {done.stderr.decode(errors='replace').strip() or done.returncode}")
        return ShellSession(box, place)

    def on(self, fork: Sandbox) -> ShellSession:
        """Return the session of this shell's copy in a fork of a full snapshot."""
        return ShellSession(fork, self.place, self._number)

    async def send(self, command: str, *, timeout: float = 60.0, max_output: int = 1 << 20) -> ExecResult:
        """Run a command in the shell; a command that runs out of time is ended together with the shell.

        Raises ShellEnded if the shell is gone: it exited, was killed, or an earlier command ran out of time.
        """
        self._number += 1
        ended = secrets.token_hex(16)
        script = _SEND.format(place=self.place, number=self._number, ended=ended)
        done = await self.box.exec(script, stdin=command.encode() + b"\n", timeout=timeout, max_output=max_output)
        if done.returncode == 99 and done.stdout.strip() == ended.encode():
            raise ShellEnded(f"{self.box.id}: the shell session has ended")
        if done.timed_out:
            await self.box.exec(f"kill -9 -$(cat {self.place}/pid)")
            return replace(done, stdout=await self._said("out", max_output), stderr=await self._said("err", max_output))
        return done

    async def close(self) -> None:
        """End the shell and its background jobs."""
        await self.box.exec(f"kill -9 -$(cat {self.place}/pid); rm -rf {self.place}")

    async def _said(self, stream: str, max_output: int) -> bytes:
        try:
            return await self.box.read(f"{self.place}/{self._number}.{stream}", max_bytes=max_output)
        except BoxError:
            return b""
