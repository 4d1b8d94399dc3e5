"""The box supervisor of gVisor: assembles the read-only parts of all boxes, runs one ``runsc`` for each box, and ends
boxes that take too much memory."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import Any

from woodshed.sandbox.guest import kernel, template
from woodshed.sandbox.host.box_supervisor import BoxSupervisor, descendants, run, tail
from woodshed.sandbox.host.owner import Owner
from woodshed.sandbox.host.payload import copy_agent

from .runsc import configuration

_TICK = 0.5
_OVERHEAD = 256 << 20
"""Bytes that gVisor itself may take in addition to a box's memory and disk."""
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class GvisorBoxSupervisor(BoxSupervisor):
    def __init__(self, owner: Owner) -> None:
        root = owner.configuration["root"]
        super().__init__(owner, root)
        self._command = [
            owner.configuration["runsc"],
            "--root",
            f"{root}/state",
            "--platform=systrap",
            "--network=none",
            "--ignore-cgroups",
            "--overlay2=root:memory",
        ]
        self._limits: dict[int, int] = {}
        self._commands: dict[int, Callable[[int], None]] = {}  # pid of a runsc command -> callback with its status
        self._stacks: dict[tuple[str, ...], str] = {}
        self._watched = time.monotonic()
        for name in ("state", "roots"):
            os.mkdir(f"{root}/{name}")
        binds = template.build(root, os.getuid())
        copy_agent(f"{root}/base")
        self._binds = [(f"{root}/{source}", target) for source, target in binds if target != "dev"]

    def _create(self, spec: dict[str, Any], *fds: int) -> int:
        box = spec["box"]
        bundle = f"{self._root}/boxes/{box}"
        with open(f"{bundle}/config.json", "w") as file:
            file.write(configuration(spec, self._stack(spec["layers"]), self._binds))
        action = (
            ["run"] if spec["image"] is None else ["restore", "-image-path", f"{self._root}/images/{spec['image']}"]
        )
        command = [*self._command, *action, "-bundle", bundle, _id(box)]
        pid = self._spawn(command, _ENVIRONMENT, f"{bundle}/log", *fds)
        if spec["memory"] is not None and spec["disk"] is not None:
            self._limits[pid] = spec["memory"] + 2 * spec["disk"] + _OVERHEAD
        return pid

    def _stack(self, layers: list[str]) -> str:
        """Return the root folder of boxes with these layers; boxes share it and write above it in gVisor's memory."""
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

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] not in ("pause", "resume"):
            super()._handle(message, fds)
            return
        try:
            self._hold(message)
        except OSError as error:  # the box is gone
            self._owner.send({"reply": message["reply"], "error": str(error)})

    def _hold(self, message: dict[str, Any]) -> None:
        """Run ``runsc pause`` or ``runsc resume``."""
        log = f"{self._root}/boxes/{message['box']}/log"

        def done(status: int) -> None:
            failed = {"error": f"runsc {message['op']}: {tail(log)}"} if status else {}
            self._owner.send({"reply": message["reply"], **failed})

        self._ask([message["op"], _id(message["box"])], log, done)

    def _checkpoint(self, message: dict[str, Any], image: str) -> None:
        log = f"{self._root}/boxes/{message['box']}/log"

        def done(status: int) -> None:
            if status:
                shutil.rmtree(image, ignore_errors=True)
                self._owner.send({"reply": message["reply"], "error": f"runsc checkpoint: {tail(log)}"})
            else:
                size = sum(entry.stat().st_size for entry in os.scandir(image))
                self._owner.send({"reply": message["reply"], "bytes": size})

        self._ask(["checkpoint", "-leave-running", "-image-path", image, _id(message["box"])], log, done)

    def _ask(self, arguments: list[str], log: str, done: Callable[[int], None]) -> None:
        """Start a runsc command on a box; ``done`` gets its wait status."""
        null = os.open("/dev/null", os.O_RDWR)
        try:
            self._commands[self._spawn([*self._command, *arguments], _ENVIRONMENT, log, null, null)] = done
        finally:
            os.close(null)

    def _ended(self, pid: int, status: int) -> None:
        if pid in self._commands:
            self._commands.pop(pid)(status)
        else:
            super()._ended(pid, status)

    def _verdict(self, pid: int, status: int, log: str) -> str:
        failed = os.WIFEXITED(status) and os.WEXITSTATUS(status)
        return f"runsc: {tail(log)}" if failed else ""

    def _clean(self, pid: int, box: int) -> None:
        self._limits.pop(pid, None)
        for name in os.listdir(f"{self._root}/state"):
            if name.startswith(_id(box)):
                os.unlink(f"{self._root}/state/{name}")

    def _watch(self) -> float | None:
        """End boxes that exceed their memory limit, files and kernel included."""
        if time.monotonic() - self._watched >= _TICK:
            for pid, limit in list(self._limits.items()):
                if sum(map(_memory, descendants(pid))) > limit:
                    self._why[pid] = "out of memory"
                    self._kill(self._boxes[pid])
            self._watched = time.monotonic()
        return 1000 * _TICK if self._boxes else None


def _id(box: int) -> str:
    """Return the container's name; all have one length, because runsc accepts a prefix in place of a name."""
    return f"box{box:08d}"


def _memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def main(host: socket.socket) -> None:
    """Entry point: the second packet on ``host`` is the configuration ``{"root": folder, "runsc": path}``."""
    run(host, GvisorBoxSupervisor)
