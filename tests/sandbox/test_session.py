"""A persistent shell, in the default backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from woodshed.sandbox.host.session import ShellEnded, ShellSession
from woodshed.sandbox.protocol import BoxSpec, Limits


def test_a_shell_keeps_what_commands_set(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec(files={"a.txt": b"text\n"}))
        shell = await ShellSession.open(box)
        for command, code, out in (
            ("cat a.txt; pwd", 0, "text\n/workspace\n"),
            ("x=41; cd /tmp; f() { echo got $1; }", 0, ""),
            ("x=$((x + 1)); echo $x; pwd; f it", 0, "42\n/tmp\ngot it\n"),
            ("false", 1, ""),
            ("(exit 99)", 99, ""),
            ("cat <<E\nhere 'is' \"text\" $x\nE", 0, "here 'is' \"text\" 42\n"),
            ("cat", 0, ""),
            ("sleep 300 & echo $! > pid", 0, ""),
            ("kill -0 $(cat pid) && echo alive", 0, "alive\n"),
        ):
            done = await shell.send(command)
            assert (done.returncode, done.stdout.decode()) == (code, out), (command, done)
        done = await shell.send("if then")
        assert done.returncode == 2 and b"yntax error" in done.stderr
        assert (await shell.send("echo still $x")).stdout == b"still 42\n"
        flood = await shell.send("head -c 3000000 /dev/zero", max_output=1000)
        assert len(flood.stdout) == 1000 and flood.truncated
        assert (await box.list("/tmp", recursive=True))[-1][0].startswith("pid")
        await shell.close()
        with pytest.raises(ShellEnded, match="ended"):
            await shell.send("echo x")

    with_backend(body)


def test_a_shell_that_is_left_or_out_of_time_has_ended(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        left, late = await ShellSession.open(box), await ShellSession.open(box, shell="/bin/bash", workdir="/tmp")
        with pytest.raises(ShellEnded, match="ended"):
            await left.send("exit 3")
        done = await late.send("echo before; echo wrong >&2; sleep 60", timeout=1)
        assert done.timed_out and (done.stdout, done.stderr) == (b"before\n", b"wrong\n")
        with pytest.raises(ShellEnded, match="ended"):
            await late.send("echo x")
        other = await ShellSession.open(box)
        assert (await other.send("echo new")).stdout == b"new\n"
        with pytest.raises(ShellEnded, match="no shell session"):
            await ShellSession.open(box, workdir="/nowhere")

    with_backend(body)


def test_what_a_box_does_to_its_shells_is_no_failure_of_the_sandbox(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec(limits=Limits(disk=2 << 20)))
        shell = await ShellSession.open(box)
        await box.exec("kill -9 $(cat /tmp/.session-*/pid)")
        with pytest.raises(OSError, match="ended"):
            await shell.send("echo x")
        assert (await box.exec("head -c 9000000 /dev/zero > /tmp/full")).returncode
        with pytest.raises(OSError, match="no shell session"):
            await ShellSession.open(box)

    with_backend(body)


def test_a_shell_that_ends_while_a_command_is_sent_is_told_as_ended(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        shell = await ShellSession.open(box)
        # What is looked at goes on for a second, what reads is gone.
        await box.exec("cd /tmp/.session-*; kill -9 $(cat pid); sleep 1 > /dev/null 2>&1 & echo $! > pid")
        with pytest.raises(OSError, match="ended"):
            await shell.send("echo x", timeout=20)

    with_backend(body)


def test_a_command_for_which_the_disk_has_no_room_fails_and_the_shell_goes_on(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec(limits=Limits(disk=2 << 20)))
        shell = await ShellSession.open(box)
        await box.exec("head -c 9000000 /dev/zero > /tmp/full")
        done = await shell.send("true " + "x" * 20_000)
        assert done.returncode == 1 and b"No space" in done.stderr and not done.timed_out, done
        await box.exec("rm /tmp/full")
        assert (await shell.send("echo on")).stdout == b"on\n"

    with_backend(body)
