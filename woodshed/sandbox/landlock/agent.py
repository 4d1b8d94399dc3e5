"""The first process of a landlock box: ``agent`` over two pipes, as an ordinary user of the host, kept in by rules.

The rules of this process also cover /proc, so that it can count and end what it started; each command gets rules of
its own below them, without /proc: it can signal nothing but itself and what it starts. There is no pid namespace: what
belongs to the box is what descends from this process, which is its descendants' subreaper.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from typing import Any

from .. import kernel, pyrun, seccomp
from ..agent import Agent
from ..guest import Guest, take_over
from ..masks import installed_packages
from ..processes import kill_all, memory, processes
from ..template import command_path
from . import rules

_TOP = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_READ = (
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs/ca-certificates.crt",
    "/etc/nsswitch.conf",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Confined(Guest):
    """Paths below the working folder that the specification names are those of the box's folder."""

    def _operate(self, request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if request["op"] == "reset":
            self._stop_everything()
            return {}, b""
        return Agent._operate(self, request, body)

    def _path(self, name: str) -> str:
        named = self._spec["named"].rstrip("/")
        if name == named or name.startswith(named + "/"):
            name = name[len(named) + 1 :]
        return super()._path(name)

    def _stats(self) -> dict[str, Any]:
        files = [f"{folder}/{name}" for folder, _, names in os.walk(self._spec["folder"]) for name in names]
        disk = sum(os.lstat(path).st_blocks << 9 for path in files if os.path.lexists(path))
        return {"processes": len(processes()), "memory": memory(), "disk": disk}


def readable() -> list[str]:
    """What of the host's programs a box may read: everything but installed Python packages."""
    prefix = os.path.realpath(sys.base_prefix)
    places = [p for p in _TOP if os.path.isdir(p) and not os.path.islink(p)]
    places += [prefix] if prefix != "/usr" and not prefix.startswith("/usr/") else []
    return [path for place in places for path in rules.without(place, installed_packages(place))]


def main() -> None:
    """``sys.argv[1]`` is the specification; standard input and output lead to the host."""
    spec = json.loads(sys.argv[1])
    take_over()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*(spec["user"],) * 3)
        os.setresuid(*(spec["user"],) * 3)
    del spec["user"]  # commands are this user already
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    folder = spec["folder"]
    rights = [(folder, rules.WRITE), *((path, rules.READ) for path in (*readable(), *_READ))]
    rights += [(path, rules.DEVICE) for path in _DEVICES]
    spec |= {"domain": rules.ruleset(rights), "restrict": rules.restrict, "workdir": f"{folder}/workspace"}
    rules.restrict(rules.ruleset([*rights, ("/proc", rules.READ)]))
    environment = {
        "PATH": command_path(), "HOME": f"{folder}/home",
        "TMPDIR": f"{folder}/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{folder}/packages",
        "GIT_CONFIG_NOSYSTEM": "1",  # a file that exists and cannot be read is an error to git
        **spec["env"],
    }  # fmt: skip
    os.environ.clear()
    os.environ.update(environment)
    for name in spec["preload"]:
        importlib.import_module(name)
    pyrun.prepare_streams()
    installed = {"site-packages", "dist-packages"}
    search = [p for p in sys.path if p.startswith(sys.base_prefix) and os.path.basename(p) not in installed]
    spec |= {"environment": environment, "finders": pyrun.prepare([*search, f"{folder}/packages"])}
    _limit(spec)
    kernel.install_seccomp(seccomp.box_filter(kernel.MACHINE, alone=False))
    kernel.capset(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Confined(spec).serve()
    finally:
        kill_all()  # nothing else would end them: the owner may be gone


def _limit(spec: dict[str, Any]) -> None:
    limits = {"RLIMIT_AS": spec["memory"], "RLIMIT_FSIZE": spec["file_size"], "RLIMIT_CORE": 0}
    if spec["processes"] is not None:  # the kernel counts those of the user, whoever started them
        limits["RLIMIT_NPROC"] = _tasks_of(os.getuid()) + spec["processes"]
    for name, limit in limits.items():
        if limit is not None:
            resource.setrlimit(getattr(resource, name), (limit, limit))


def _tasks_of(user: int) -> int:
    total = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return total
