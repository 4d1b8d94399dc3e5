"""Parts of the microvm backend that need no guest: copies of memory, QEMU's control socket, templates, machines."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.sandbox.backends.microvm import initrd, machine
from woodshed.sandbox.backends.microvm.box_supervisor import Monitor
from woodshed.sandbox.backends.microvm.templates import Templates, copy_memory
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError

PAGE = mmap.PAGESIZE
_MAPPER = """
import json, mmap, sys
path, size, changes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
with open(path, "rb") as file:
    memory = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
for page, byte in changes:
    memory[page * mmap.PAGESIZE + 7] = byte
sum(memory[page * mmap.PAGESIZE] for page in range(size // mmap.PAGESIZE))  # pages that are there and not changed
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("changed", [[], [0], [1, 2, 3, 511, 512, 1030], [5, 1599]], ids=str)
def test_a_copy_of_memory_is_what_the_process_sees(tmp_path: Path, changed: list[int]) -> None:
    pages = 1600  # more than three pieces of the page map
    source = tmp_path / "memory"
    with open(source, "wb") as file:
        file.truncate(pages * PAGE)
        for page in (0, 2, 700):
            file.seek(page * PAGE)
            file.write(os.urandom(PAGE))
    expected = bytearray(source.read_bytes())
    for page in changed:
        expected[page * PAGE + 7] = page % 255 + 1
    changes = json.dumps([(page, page % 255 + 1) for page in changed])
    command = [sys.executable, "-c", _MAPPER, str(source), str(pages * PAGE), changes]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process, open(source, "rb") as mapped, open(tmp_path / "copy", "w+b") as copy:
        assert process.stdout.readline() == b"\n"
        with pytest.raises(OSError, match="no memory of a guest"):
            copy_memory(os.getpid(), mapped.fileno(), copy.fileno())
        copy_memory(process.pid, mapped.fileno(), copy.fileno())
        process.stdin.close()
    assert (tmp_path / "copy").read_bytes() == expected
    assert 512 * (tmp_path / "copy").stat().st_blocks <= (3 + len(changed) + 64) * PAGE, "holes are holes"


def _talk(answers: bytes, body: Callable[[Monitor], Coroutine[Any, Any, None]]) -> bytes:
    """What a monitor sends that hears ``answers`` and then the end."""

    async def run() -> bytes:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        writer.write(b'{"QMP": {}}\n' + answers)
        writer.write_eof()
        monitor = Monitor(ours)
        try:
            await body(monitor)
        finally:
            monitor.close()
        try:
            return await reader.read()
        except ConnectionError:  # it hung up on us
            return b""
        finally:
            writer.transport.abort()

    return asyncio.run(run())


def test_the_monitor_passes_events_and_reports_errors() -> None:
    answers = ({"return": {}}, {"event": "STOP"}, {"return": {}}, {"error": {"desc": "no such"}})

    async def body(monitor: Monitor) -> None:
        await monitor.execute("stop")
        with pytest.raises(SandboxError, match=r"refuses 'cont': .*no such"):
            await monitor.execute("cont")

    said = _talk(b"\r\n".join(json.dumps(answer).encode() for answer in answers) + b"\r\n", body)
    assert [json.loads(line)["execute"] for line in said.splitlines()] == ["qmp_capabilities", "stop", "cont"]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.sampled_from([b"x" * 3_000_000, b"[" * 200_000 + b"\n", b"[1]\n", b"3\n"]))
def test_whatever_qemu_says_is_a_typed_error(noise: bytes) -> None:
    async def body(monitor: Monitor) -> None:
        with pytest.raises(SandboxError):
            await monitor.execute("stop")

    _talk(noise, body)


def test_a_template_is_booted_once_and_the_oldest_idle_one_goes() -> None:
    booted, released = list[str](), list[str]()

    async def boot(spec: BoxSpec, name: str) -> None:
        await asyncio.sleep(0)
        if spec.workdir == "/broken" and len(booted) < 2:
            booted.append("broken")
            raise SandboxError("no boot")
        booted.append(name)

    async def release(name: str) -> None:
        released.append(name)

    async def use(templates: Templates, spec: BoxSpec) -> str:
        async with templates.of(spec) as name:
            await asyncio.sleep(0)
            return name

    async def run() -> None:
        templates = Templates(boot, release)
        same = [BoxSpec(env={"n": str(n)}, files={"n": bytes(n)}) for n in range(3)]
        assert await asyncio.gather(*(use(templates, spec) for spec in same)) == ["t1"] * 3 and booted == ["t1"]
        broken = BoxSpec(workdir="/broken")
        with pytest.raises(SandboxError, match="no boot"):
            await use(templates, broken)
        assert await use(templates, broken) == "t3", "the next box tries again"
        async with templates.of(same[0]):
            for n in range(9):
                await use(templates, BoxSpec(limits=Limits(processes=n + 1)))
            assert "t1" not in released and released[0] == "t3", "what is in use stays"
        assert len(booted) - 1 - len(released) <= 8

    asyncio.run(run())


def test_a_kernel_is_unpacked() -> None:
    kernel = b"\x7fELF" + bytes(5000)
    payload = zstandard.compress(kernel)
    packed = bytearray(3 * 512) + b"head" + payload + b"tail"
    packed[0x1F1] = 2
    struct.pack_into("<II", packed, 0x248, 4, len(payload))
    assert initrd.unpack(bytes(packed)) == kernel
    packed[3 * 512 + 4] = 0
    assert initrd.unpack(bytes(packed)) == bytes(packed), "packed in another way: as it is"


def test_a_machine_has_no_network_and_little_else() -> None:
    size = machine.guest_memory(1 << 30, 100 << 20)
    assert size % (2 << 20) == 0 and 1380 << 20 <= size < 1384 << 20
    assert machine.guest_memory(None, None) >= 2 << 30
    common: dict[str, Any] = {
        "accelerator": "tcg",
        "memory": "/m",
        "size": size,
        "state": "/s",
        "images": {"usr": "/u", "layer00": "/l"},
        "kernel": "/k",
        "initrd": "/i",
        "append": "x",
        "firmware": [],
    }
    for boot in (True, False):
        arguments = machine.arguments(boot=boot, **common)
        devices = [value for option, value in pairwise(arguments) if option == "-device"]
        assert {device.partition(",")[0] for device in devices} - {"loader"} == {
            "virtio-serial-device",
            "virtserialport",
            "virtio-rng-device",
            "virtio-blk-device",
        }
        assert all("readonly=on" in value for option, value in pairwise(arguments) if option == "-drive")
        assert ("-nodefaults" in arguments) and ("-incoming" in arguments) is not boot
        assert any("share=on" in value for value in arguments) is boot, "only a template writes to its file"
