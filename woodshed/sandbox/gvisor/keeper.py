"""The process that owns gVisor's sandboxes: first process of a pid namespace, with mounts of its own.

It assembles the read-only parts of all boxes, then serves the owner's socket as the zygote does: create, kill,
checkpoint and release. It ends when the owner does, and the kernel ends everything in its namespace with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from .. import kernel, template
from ..owner import Owner
from .bundle import configuration, copy_agent

_TICK = 0.5
_OVERHEAD = 256 << 20
"""What gVisor itself may take beside a box's memory and disk."""


class Keeper:
    def __init__(self, owner: Owner, root: str, runsc: str) -> None:
        self._owner, self._root = owner, root
        self._command = [
            runsc, "--root", f"{root}/state", "--platform=systrap", "--network=none", "--ignore-cgroups",
            "--overlay2=root:memory",
        ]  # fmt: skip
        self._boxes: dict[int, int] = {}  # pid of its runsc -> box
        self._limits: dict[int, int] = {}
        self._why: dict[int, str] = {}
        self._asked: dict[int, Callable[[int], None]] = {}  # pid of a command -> what its end means
        self._stacks: dict[tuple[str, ...], str] = {}
        self._watched = time.monotonic()
        kernel.mount("woodshed", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
        for name in ("state", "boxes", "images", "roots"):
            os.mkdir(f"{root}/{name}")
        binds = template.build(root, os.getuid())
        copy_agent(f"{root}/base")
        self._binds = [(f"{root}/{source}", target) for source, target in binds if target != "dev"]

    def serve(self) -> None:
        """Answer the owner until it goes away."""
        self._owner.serve(self._handle, self._ended, between=self._watch)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        operation = message["op"]
        if operation == "create":
            try:
                self._create(message, *fds)
            except OSError as error:
                self._owner.send({"gone": message["box"], "error": str(error)})
        elif operation == "kill":
            self._kill(message["box"])
        elif operation == "checkpoint":
            try:
                self._checkpoint(message)
            except OSError as error:  # the box is gone, or there is no room for its image
                shutil.rmtree(f"{self._root}/images/{message['name']}", ignore_errors=True)
                self._owner.send({"reply": message["reply"], "error": str(error)})
        elif operation == "release":
            shutil.rmtree(f"{self._root}/images/{message['name']}", ignore_errors=True)
            self._owner.send({"reply": message["reply"]})

    def _create(self, spec: dict[str, Any], source: int, sink: int) -> None:
        box = spec["box"]
        bundle = f"{self._root}/boxes/{box}"
        os.mkdir(bundle)
        with open(f"{bundle}/config.json", "w") as file:
            file.write(configuration(spec, self._stack(spec["layers"]), self._binds))
        action = (
            ["run"] if spec["image"] is None else ["restore", "-image-path", f"{self._root}/images/{spec['image']}"]
        )
        pid = self._spawn([*action, "-bundle", bundle, _id(box)], f"{bundle}/log", source, sink)
        self._boxes[pid] = box
        if spec["memory"] is not None and spec["disk"] is not None:
            self._limits[pid] = spec["memory"] + 2 * spec["disk"] + _OVERHEAD

    def _stack(self, layers: list[str]) -> str:
        """The root folder of boxes with these layers; boxes share it and write above it in gVisor's memory."""
        key = tuple(layers)
        if not key:
            return f"{self._root}/base"
        if key not in self._stacks:
            for path in layers:
                if any(c in path for c in ",:\\"):
                    raise OSError(22, f"layer {path}: its path must not contain a comma, a colon or a backslash")
                if not os.path.isdir(path):
                    raise OSError(2, f"layer {path}: no such folder, or not readable")
            place = f"{self._root}/roots/{len(self._stacks)}"
            os.mkdir(place)
            lower = ":".join([*reversed(layers), f"{self._root}/base"])
            kernel.mount("root", place, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, f"lowerdir={lower}")
            self._stacks[key] = place
        return self._stacks[key]

    def _kill(self, box: int) -> None:
        pid = next((p for p, b in self._boxes.items() if b == box), None)
        if pid is None:
            self._owner.send({"gone": box})
            return
        for process in (*_descendants(pid), pid):  # what runsc started for the box, then itself
            _kill(process)

    def _checkpoint(self, message: dict[str, Any]) -> None:
        image = f"{self._root}/images/{message['name']}"
        os.mkdir(image)
        arguments = ["checkpoint", "-leave-running", "-image-path", image, _id(message["box"])]
        log = f"{self._root}/boxes/{message['box']}/log"
        null = os.open("/dev/null", os.O_RDWR)
        pid = self._spawn(arguments, log, null, null)
        os.close(null)

        def done(status: int) -> None:
            if status:
                shutil.rmtree(image, ignore_errors=True)
                self._owner.send({"reply": message["reply"], "error": f"runsc checkpoint: {_tail(log)}"})
            else:
                size = sum(entry.stat().st_size for entry in os.scandir(image))
                self._owner.send({"reply": message["reply"], "bytes": size})

        self._asked[pid] = done

    def _spawn(self, arguments: list[str], log: str, stdin: int, stdout: int) -> int:
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, stdout, errors))]
        try:
            # A session of its own: a terminal's ^C is for the owner to decide about.
            return os.posix_spawn(
                self._command[0], [*self._command, *arguments], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                file_actions=actions, setsid=True,
            )  # fmt: skip
        finally:
            os.close(errors)

    def _ended(self, pid: int, status: int) -> None:
        if pid in self._asked:
            self._asked.pop(pid)(status)
        elif pid in self._boxes:
            self._bury(pid, status)

    def _bury(self, pid: int, status: int) -> None:
        box = self._boxes.pop(pid)
        self._limits.pop(pid, None)
        bundle = f"{self._root}/boxes/{box}"
        message: dict[str, Any] = {"gone": box}
        why = self._why.pop(pid, "")
        if why or (os.WIFEXITED(status) and os.WEXITSTATUS(status)):
            message["error"] = why or f"runsc: {_tail(f'{bundle}/log')}"
        for name in os.listdir(f"{self._root}/state"):
            if name.startswith(_id(box)):
                os.unlink(f"{self._root}/state/{name}")
        shutil.rmtree(bundle, ignore_errors=True)
        self._owner.send(message)

    def _watch(self) -> float | None:
        """End a box that takes more memory than it may, files and kernel included. How long until the next look, ms."""
        if time.monotonic() - self._watched >= _TICK:
            for pid, limit in list(self._limits.items()):
                if sum(map(_memory, _descendants(pid))) > limit:
                    self._why[pid] = "out of memory"
                    self._kill(self._boxes[pid])
            self._watched = time.monotonic()
        return 1000 * _TICK if self._boxes else None


def _id(box: int) -> str:
    """All of one length: runsc takes the beginning of a name for the name."""
    return f"box{box:08d}"


def _descendants(pid: int) -> list[int]:
    """Deepest first. A process is the child of the thread that started it, and runsc has many."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return [p for child in children for p in (*_descendants(child), child)]


def _memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _tail(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return " ".join(file.read()[-600:].split()) or "no message"
    except OSError:
        return "no message"


def _enter() -> None:
    """Namespaces of our own; returns in the first process of the pid namespace. The process outside waits for it."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        kernel.unshare(flags)
    else:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        kernel.map_user(0, uid, gid)
    pid = os.fork()
    if pid:
        os.close(0)  # the owner's socket: its end is for the other process to see
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def main(host: socket.socket) -> None:
    """Entry point: the second packet on ``host`` is the configuration ``{"root": folder, "runsc": path}``."""
    owner = Owner(host)
    try:
        _enter()
        keeper = Keeper(owner, owner.configuration["root"], owner.configuration["runsc"])
    except OSError as error:
        owner.failed(error)
        sys.exit(1)
    owner.ready(privileged=os.getuid() == 0)
    keeper.serve()
