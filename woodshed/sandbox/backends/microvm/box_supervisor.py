"""The box supervisor of microvm: runs one QEMU for each box in a confined root folder; also the client of QEMU's QMP.

The supervisor has pid, mount, network and IPC namespaces of its own. Its root shows only the host's /usr, the images,
QEMU's files and its state in memory. QEMU runs there without capabilities and under its own seccomp rules: as the user
of boxes if root started it, else as the user who started it. A guest that took over its QEMU would be confined there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from typing import Any

from woodshed.sandbox.guest import kernel, template
from woodshed.sandbox.guest.template import BOX_UID
from woodshed.sandbox.host.box_supervisor import BoxSupervisor, run, tail
from woodshed.sandbox.host.owner import Owner
from woodshed.sandbox.protocol import SandboxError

from .machine import arguments
from .templates import copy_memory

STATE, IMAGES, PROGRAMS, KVM = "/state", "/images", "/qemu", "/kvm"
ENDED = "its kernel ended"
_MAX_WRITTEN = 64 << 20
"""Maximum bytes of a file that QEMU writes: devices' state, log. The guest's memory is mapped, not written."""
_CONFINED = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


class MicrovmBoxSupervisor(BoxSupervisor):
    def __init__(self, owner: Owner) -> None:
        configuration = owner.configuration
        super().__init__(owner, configuration["root"])
        self._settings = configuration
        self._memory: dict[int, int] = {}  # pid -> descriptor of the file that its memory is mapped from
        self._booting: dict[int, str] = {}
        self._user = BOX_UID if os.getuid() == 0 and kernel.is_mapped(BOX_UID) else None
        self._enter_root()
        self._root = STATE
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _enter_root(self) -> None:
        root, base = self._root, f"{self._root}/base"
        binds = template.build(root, os.getuid())
        kernel.mount(base, base, flags=kernel.MS_BIND)
        for source, target in binds:
            kernel.mount(f"{root}/{source}", f"{base}/{target}", flags=kernel.MS_BIND | kernel.MS_REC)
        places = {STATE: root, IMAGES: self._settings["images"], PROGRAMS: self._settings["programs"]}
        for place, source in places.items():
            os.mkdir(base + place)
            kernel.mount(source, base + place, flags=kernel.MS_BIND)
            if place != STATE:
                kernel.seal_mount(base + place, recursive=False, nodev=True)
        if self._settings["accelerator"] == "kvm":
            open(base + KVM, "w").close()
            kernel.mount("/dev/kvm", base + KVM, flags=kernel.MS_BIND)
        kernel.mount("proc", f"{base}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        os.chdir(base)
        kernel.pivot_root(".", ".")
        kernel.umount(".")
        os.chdir("/")

    def _create(self, spec: dict[str, Any], *fds: int) -> int:
        image = f"{STATE}/images/{spec['image']}"
        memory = f"{image}/memory"
        if spec["boot"]:
            os.mkdir(image)
            self._make(f"{image}/state")
            self._make(memory, spec["size"])
        command = arguments(
            accelerator=spec["accelerator"],
            memory=memory,
            size=spec["size"],
            boot=spec["boot"],
            state=f"{image}/state",
            images={name: f"{IMAGES}/{file}" for name, file in spec["images"].items()},
            kernel=f"{IMAGES}/{spec['kernel']}",
            initrd=f"{IMAGES}/{spec['initrd']}",
            append=spec["append"],
            firmware=[f"{PROGRAMS}/{folder}" for folder in self._settings["firmware"]],
        )
        libraries = ":".join(f"{PROGRAMS}/{folder}" for folder in self._settings["libraries"])
        log = f"{STATE}/boxes/{spec['box']}/log"
        kept = os.open(memory, os.O_RDONLY | os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        console = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_WRITTEN, hard))
        try:
            program = [*self._confined(), f"{PROGRAMS}/{self._settings['qemu']}", *command]
            pid = self._spawn(program, {"LD_LIBRARY_PATH": libraries}, log, null, console, *fds)
        except BaseException:
            os.close(kept)
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            os.close(null)
            os.close(console)
        self._memory[pid] = kept
        if spec["boot"]:
            self._booting[pid] = image
        return pid

    def _checkpoint(self, message: dict[str, Any], image: str) -> None:
        """Copy the memory of a stopped machine; QEMU itself writes ``state`` beside it."""
        pid = self._pid(message["box"])
        if pid is None:
            raise OSError(3, "the box is gone")
        self._make(f"{image}/state")
        target = os.open(f"{image}/memory", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(target, 0o444)
            copy_memory(pid, self._memory[pid], target)
            size = 512 * os.fstat(target).st_blocks
        finally:
            os.close(target)
        self._owner.send({"reply": message["reply"], "bytes": size})

    def _make(self, path: str, size: int = 0) -> None:
        """Make a file that QEMU may write."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            if self._user is not None:
                os.fchown(fd, self._user, self._user)
        finally:
            os.close(fd)

    def _confined(self) -> list[str]:
        if self._user is None:
            return ["/usr/bin/setpriv", *_CONFINED, "--"]
        groups = f"--groups={os.stat(KVM).st_gid}" if os.path.exists(KVM) else "--clear-groups"
        return ["/usr/bin/setpriv", f"--reuid={self._user}", f"--regid={self._user}", groups, *_CONFINED, "--"]

    def _verdict(self, pid: int, status: int, log: str) -> str:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return ""
        # If the guest resets or halts, QEMU ends with status 0.
        return f"{ENDED if status == 0 else 'qemu'}: {tail(log)}"

    def _clean(self, pid: int, box: int) -> None:
        os.close(self._memory.pop(pid))
        image = self._booting.pop(pid, None)
        if image is not None and os.path.exists(f"{image}/memory"):  # nobody changes the file any more
            os.chown(f"{image}/memory", os.getuid(), os.getgid())
            os.chmod(f"{image}/memory", 0o444)


def main(host: socket.socket) -> None:
    """Entry point: the second packet on ``host`` is the configuration, see ``backend``."""
    run(host, MicrovmBoxSupervisor, kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)


_LONGEST = 1 << 20
_SECONDS = 60.0
_FAULTS = (OSError, ValueError, RecursionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Monitor:
    """QMP client: one JSON object per line, one command at a time; connects when it is first used.

    Answers are bounded and checked, because a guest may have taken over its QEMU.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def execute(self, command: str, **arguments: Any) -> None:
        """Execute a command. Raises SandboxError with QEMU's error."""
        try:
            await asyncio.wait_for(self._execute(command, arguments), _SECONDS)
        except _FAULTS as error:
            raise SandboxError(f"qemu does not answer {command!r}: {error or type(error).__name__}") from None

    async def _execute(self, command: str, arguments: dict[str, Any]) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=_LONGEST)
            await self._streams[0].readuntil()  # QMP's greeting
            await self._ask("qmp_capabilities", {})
        await self._ask(command, arguments)

    async def _ask(self, command: str, arguments: dict[str, Any]) -> None:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(await reader.readuntil())
            if not isinstance(answer, dict):
                raise ValueError("not an object")
            if "error" in answer:
                raise SandboxError(f"qemu refuses {command!r}: {str(answer['error'])[:500]}")
            if "return" in answer:
                return  # lines with neither are events

    def close(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._streams[1].transport.abort()
        self._socket.close()
