"""PID 1 of a box: serves the host's requests over one socket until that closes.

One thread, one poll loop: file operations are answered at once, commands run concurrently. No request and nothing that
a command does may end this process; every failure becomes a typed reply.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from typing import Any

from . import cgroups, frames, kernel
from . import files as boxfiles
from .jobs import Job, alone
from .processes import go_on, kill, kill_all, kill_everything, memory, processes, send, stop
from .turns import Turns, make_turns, wanting_to_run

_TICK = 0.25
_MAX_REPLY = 128 << 20
_FULL = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errnos with which a command fails to start in a box that is full of its own processes."""


class Agent:
    """Serves the requests of one box.

    ``control``, ``upper``: descriptors of the host's socket and of the writable mount. ``events``: descriptor of the
    file that counts the processes killed because the box's control group was full.
    """

    def __init__(self, control: int, upper: int, spec: dict[str, Any], events: int | None) -> None:
        self._control = socket.socket(fileno=control)
        self._upper = upper
        self._events = events
        self._spec = spec
        self._jobs: dict[int, Job] = {}  # by pid
        self._fds: dict[int, Job] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._decoder = frames.Decoder()
        self._populated = False  # a command left processes behind
        self._checked = 0.0
        self._paused: float | None = None  # time at which the box was paused
        self._stopped: set[int] = set()  # processes that were stopped before that
        self._open = False  # dumpable, so that the fork server can look in; only while no other process lives
        self._turns: Turns | None = None if spec.get("shares", True) else make_turns(send)

    def serve(self) -> None:
        """Serve requests until the host closes the socket."""
        control = self._control.fileno()
        while True:
            for fd, _ in self._poll.poll(self._wait_ms()):
                if fd == control:
                    data = self._control.recv(1 << 18)
                    if not data:
                        return
                    for header, body in self._decoder.feed(data):
                        self._handle(header, body)
                else:
                    self._progress(fd)
            if self._jobs or self._populated:
                self._enforce()

    def _wait_ms(self) -> float | None:
        if not self._jobs or self._paused is not None:
            return 1000 * _TICK if self._populated else None
        left = min(job.deadline for job in self._jobs.values()) - time.monotonic()
        return 1000 * max(0.0, min(left, _TICK))

    def _reply(self, header: dict[str, Any], body: bytes = b"") -> None:
        self._control.sendall(frames.encode(header, body))

    def _handle(self, request: dict[str, Any], body: bytes) -> None:
        number = request.get("id", 0)
        if self._open:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            self._open = False
        try:
            if request["op"] in ("exec", "python"):
                self._start(request, body)
                return
            header, data = self._operate(request, body)
            self._reply({"id": number, **header}, data)
        except OSError as error:
            message = error.strerror or str(error)
            path = error.filename if isinstance(error.filename, str) else None
            reply = {"id": number, "errno": error.errno or errno.EIO, "message": message, "path": path}
            self._reply({**reply, "host": True} if self._is_host_fault(request["op"], error) else reply)
        except (MemoryError, RecursionError, frames.FrameError, ValueError) as error:
            self._reply({"id": number, "errno": errno.EINVAL, "message": str(error) or type(error).__name__})

    def _is_host_fault(self, operation: str, error: OSError) -> bool:
        """Return whether the machine, not the box, lacks a resource: no other process of the box could hold it.

        Files that ``get`` collects are regular ones of this box or of a layer, so EIO means that a layer's disk failed.
        """
        if operation == "get" and error.errno == errno.EIO:
            return True
        full = (errno.EAGAIN, errno.ENFILE) if operation in ("exec", "python") else (errno.ENFILE,)
        return error.errno in full and alone()

    def _operate(self, request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        operation = request["op"]
        if operation == "put":
            for name, data in frames.unpack_files(request["files"], body):
                boxfiles.write(self._path(name), data)
            if request.get("workdir"):
                os.makedirs(self._spec["workdir"], exist_ok=True)
        elif operation == "read":
            return {}, boxfiles.read(self._path(request["path"]), min(request["max_bytes"], _MAX_REPLY))
        elif operation == "delete":
            boxfiles.delete(self._path(request["path"]))
        elif operation == "list":
            path = self._path(request["path"])
            return {"entries": boxfiles.listing(path, request["recursive"], request["limit"])}, b""
        elif operation == "get":
            found = boxfiles.collect(self._spec["workdir"], request["patterns"], min(request["max_bytes"], _MAX_REPLY))
            table, data = frames.pack_files(found)
            return {"files": table}, data
        elif operation == "seal":
            return self._seal_upper(), b""
        elif operation == "cancel":
            for job in self._jobs.values():
                if job.id == request["target"]:
                    job.kill()
        elif operation == "stats":
            return self._stats(), b""
        elif operation == "pause":
            self._pause()
        elif operation == "resume":
            self._resume()
        else:
            raise ValueError(f"unknown operation {operation!r}")
        return {}, b""

    def _path(self, name: str) -> str:
        if "\0" in name:
            raise ValueError("a path holds a NUL byte")
        return os.path.join(self._spec["workdir"], name)

    def _start(self, request: dict[str, Any], body: bytes) -> None:
        request["cwd"] = self._path(request["cwd"] or "")
        if request["op"] == "python":
            size = request["source"]
            request["source"], body = body[:size].decode("utf-8", "surrogatepass"), body[size:]
        try:
            job = Job(request, body, self._spec)
        except OSError as error:
            if error.errno not in _FULL:
                self._refuse(request, error)
                return
            self._stop_everything()  # the box is full of its own processes: end them and try once more
            job = Job(request, body, self._spec)
        job.kills = self._kills()
        self._jobs[job.pid] = job
        for fd in (job.pidfd, *job.streams):
            self._fds[fd] = job
            self._poll.register(fd, select.POLLIN)

    def _refuse(self, request: dict[str, Any], error: OSError) -> None:
        """Report a command that cannot start as a shell does: 127 if something does not exist, else 126."""
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        text = f"{error.filename or request.get('argv', ['python'])[0]}: {error.strerror}\n".encode()
        header = {
            "id": request["id"],
            "returncode": 127 if missing else 126,
            "out": 0,
            "timed_out": False,
            "truncated": False,
            "out_of_memory": False,
            "seconds": 0.0,
        }
        self._reply(header, text)

    def _progress(self, fd: int) -> None:
        job = self._fds.get(fd)
        if job is None:
            return  # it ended in this round of the poll loop
        if fd == job.pidfd:
            job.woken()
            self._reap()
        elif not job.drain(fd):
            self._forget(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._populated = False
                return
            if pid == 0:
                self._populated = True
                return
            job = self._jobs.get(pid)
            if job is not None:
                job.status = status
                self._finish(job)

    def _finish(self, job: Job) -> None:
        del self._jobs[job.pid]
        if job.status and self._kills() > job.kills:
            job.out_of_memory = True
        for fd in (job.pidfd, *job.streams):
            self._forget(fd)
        self._reply(*job.result())

    def _kills(self) -> int:
        return cgroups.kills(self._events) if self._events is not None else 0

    def _forget(self, fd: int) -> None:
        if self._fds.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _enforce(self) -> None:
        """Enforce deadlines at every call, and limits on memory and processor time once a tick."""
        now = time.monotonic()
        if self._paused is not None:
            self._keep_stopped(now)
            return
        for job in self._jobs.values():
            if now >= job.deadline:
                job.timed_out = True
                job.deadline = now + _TICK  # kill again, in case a child was born meanwhile
                job.kill()
        if now - self._checked < _TICK:
            return
        self._checked = now
        if not self._jobs:
            self._reap()
        elif all(now - job.started < _TICK for job in self._jobs.values()):
            return  # most commands end before a look at the processes is worth it
        running = processes()
        if self._spec["cpu"] is not None:
            for process in running:  # programs can raise their own soft limit, but not this one
                if process.cpu > self._spec["cpu"]:
                    kill(process.pid)
        if self._turns is not None:
            self._turns.look(running, wanting_to_run() - sum(process.state == "R" for process in running) - 1)
        limit, until = self._spec["memory"], min((job.deadline for job in self._jobs.values()), default=math.inf)
        if limit is not None and sum(process.resident for process in running) > limit and memory(until) > limit:
            for job in self._jobs.values():
                job.out_of_memory = True
            kill_everything()

    def _pause(self) -> None:
        if self._turns is not None:
            self._turns.release()
        self._paused = time.monotonic()
        self._populated = True  # makes the loop look at the processes once a tick
        self._freeze()

    def _freeze(self) -> None:
        self._stopped = stop()

    def _thaw(self) -> None:
        go_on(self._stopped)

    def _keep_stopped(self, now: float) -> None:
        """End processes that did not stay stopped: a process can continue itself by a timer."""
        if now - self._checked >= _TICK:
            self._checked = now
            for process in processes():
                if process.state in "RS":
                    kill(process.pid)

    def _resume(self) -> None:
        if self._paused is None:
            return
        away, self._paused = time.monotonic() - self._paused, None
        for job in self._jobs.values():
            job.deadline += away
            job.started += away
        self._thaw()

    def _seal_upper(self) -> dict[str, Any]:
        """End all processes and let the fork server take the writable filesystem.

        The fork server of an ordinary user may look into this process only while it is dumpable.
        """
        self._stop_everything()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        self._open = True
        usage = os.fstatvfs(self._upper)
        return {"bytes": (usage.f_blocks - usage.f_bfree) * usage.f_frsize}

    def _stop_everything(self) -> None:
        kill_all()
        for job in list(self._jobs.values()):
            job.status = 9
            self._finish(job)

    def _stats(self) -> dict[str, Any]:
        usage = os.fstatvfs(self._upper)
        disk = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        return {"processes": len(processes()), "memory": memory(), "disk": disk}
