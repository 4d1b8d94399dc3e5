"""The box supervisor: a process that runs one program for each box, in a pid and a mount namespace of its own.

It serves the same requests on the owner's socket as the fork server: create, kill, checkpoint and release. It ends when
the owner does, and as it is the first process of its pid namespace the kernel then ends every other process in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from woodshed.sandbox.guest import kernel

from .owner import Owner


class BoxSupervisor:
    """Starts and ends the programs of boxes. ``root``: folder of its state (``boxes/``, ``images/``), on a tmpfs."""

    def __init__(self, owner: Owner, root: str) -> None:
        self._owner, self._root = owner, root
        self._boxes: dict[int, int] = {}  # pid of its program -> box
        self._why: dict[int, str] = {}
        kernel.mount("woodshed", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755")
        for name in ("boxes", "images"):
            os.mkdir(f"{root}/{name}")

    def serve(self) -> None:
        """Answer the owner until it goes away."""
        self._owner.serve(self._handle, self._ended, between=self._watch)

    def _create(self, spec: dict[str, Any], *fds: int) -> int:
        """Start the program of a box, whose folder exists; return its pid. Raises OSError."""
        raise NotImplementedError

    def _checkpoint(self, message: dict[str, Any], image: str) -> None:
        """Make the image of a box in the folder ``image`` and answer. Raises OSError."""
        raise NotImplementedError

    def _ended(self, pid: int, status: int) -> None:
        if pid in self._boxes:
            self._reap(pid, status)

    def _verdict(self, pid: int, status: int, log: str) -> str:
        """Return the reason why the program of a box ended, or ''. ``log``: file that the program wrote."""
        raise NotImplementedError

    def _clean(self, pid: int, box: int) -> None:
        """Drop what a backend has stored for a box that is gone."""

    def _watch(self) -> float | None:
        """Do periodic work; return the maximum length of the next wait in milliseconds. Called before every wait."""
        return None

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        operation = message["op"]
        if operation == "create":
            box = message["box"]
            try:
                if len(fds) != 2:  # the kernel drops descriptors where the process may have no more
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                os.mkdir(f"{self._root}/boxes/{box}")
                self._boxes[self._create(message, *fds)] = box
            except OSError as error:
                shutil.rmtree(f"{self._root}/boxes/{box}", ignore_errors=True)
                self._owner.send({"gone": box, "error": str(error)})
        elif operation == "kill":
            self._kill(message["box"])
        elif operation == "checkpoint":
            image = f"{self._root}/images/{message['name']}"
            try:
                os.mkdir(image)
                self._checkpoint(message, image)
            except OSError as error:  # the box is gone, or there is no room for its image
                shutil.rmtree(image, ignore_errors=True)
                self._owner.send({"reply": message["reply"], "error": str(error)})
        elif operation == "release":
            shutil.rmtree(f"{self._root}/images/{message['name']}", ignore_errors=True)
            self._owner.send({"reply": message["reply"]})

    def _kill(self, box: int) -> None:
        pid = self._pid(box)
        if pid is None:
            self._owner.send({"gone": box})
            return
        for process in (*descendants(pid), pid):  # what the program started for the box, then itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _pid(self, box: int) -> int | None:
        return next((p for p, b in self._boxes.items() if b == box), None)

    def _spawn(self, command: list[str], environment: dict[str, str], log: str, *fds: int) -> int:
        """Run a program with ``fds`` as descriptors 0, 1, 3, 4, ... and standard error in ``log``; return its pid."""
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Duplicated above the numbers that they will get, so that no dup2 overwrites one that is still needed.
        places = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in (*fds[:2], errors, *fds[2:])]
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(places)]
        try:
            # In a session of its own, so that a terminal's ^C does not reach it: the owner decides.
            return os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True)
        finally:
            for fd in (errors, *places):
                os.close(fd)

    def _reap(self, pid: int, status: int) -> None:
        box = self._boxes.pop(pid)
        folder = f"{self._root}/boxes/{box}"
        message: dict[str, Any] = {"gone": box}
        why = self._why.pop(pid, "") or self._verdict(pid, status, f"{folder}/log")
        if why:
            message["error"] = why
        self._clean(pid, box)
        shutil.rmtree(folder, ignore_errors=True)
        self._owner.send(message)


def descendants(pid: int) -> list[int]:
    """List the descendants of a process, deepest first. Reads every thread, because children belong to threads."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return [p for child in children for p in (*descendants(child), child)]


def tail(path: str) -> str:
    """Return the end of a log on one line."""
    try:
        with open(path, errors="replace") as file:
            return " ".join(file.read()[-600:].split()) or "no message"
    except OSError:
        return "no message"


def run(host: socket.socket, make: Callable[[Owner], BoxSupervisor], flags: int = 0) -> None:
    """Enter new namespaces (``flags`` besides mount and pid) and serve with the supervisor that ``make`` returns."""
    owner = Owner(host)
    try:
        _enter(flags | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
        box_supervisor = make(owner)
    except OSError as error:
        owner.failed(error)
        sys.exit(1)
    owner.ready(privileged=os.getuid() == 0)
    box_supervisor.serve()


def _enter(flags: int) -> None:
    """Enter the namespaces. Returns only in the first process of the new pid namespace; its parent waits for it."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        kernel.unshare(flags)
    else:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        kernel.map_user(0, uid, gid)
    pid = os.fork()
    if pid:
        os.close(0)  # the owner's socket: only the other process may hold it and see its end
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
