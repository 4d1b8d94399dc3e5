"""Start-up of the first process of a box: it builds the box around itself before it serves requests.

It starts as a clone of the fork server in new user, mount, pid, network, ipc, uts and cgroup namespaces, with all
capabilities over those and none over anything else. Afterwards it is PID 1 with the box as its root, one capability
(CAP_SYS_PTRACE, to account for every process), the system-call filter on, and only its sockets open.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
from typing import Any, NamedTuple

from woodshed.sandbox.guest import kernel, pyrun, seccomp
from woodshed.sandbox.guest.agent import Agent
from woodshed.sandbox.guest.cgroups import Joining
from woodshed.sandbox.guest.frames import encode
from woodshed.sandbox.guest.template import HOME, SYSTEM_PATH, UID, command_path, search_path

from . import hostparts
from . import net as boxnet

CONTROL, UPPER, OFFER, EVENTS = 3, 4, 5, 6
NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_RESERVED_PIDS = 300
_SHM = 64 << 20
_INODES = 1 << 14
"""Minimum number of inodes of a writable file system; larger ones have one for every 4 KiB. An inode takes about 1 KiB
of the kernel's memory."""
_DESCRIPTORS = 1024
"""Descriptors of one process: data that waits in its sockets and pipes is the kernel's memory. It is at most half of
the limit of fork server and owner, or a box could keep them from sending descriptors (see ``fork_server.main``)."""
_TERMINALS = 64
_SHARE = 64
"""Divisor: each box that shares its host user may take 1/64 of what the kernel counts by host user."""
_FEWEST_SIGNALS = 64
_FILTERS = {
    network: seccomp.box_filter(kernel.MACHINE, network=network) if kernel.MACHINE in ("x86_64", "aarch64") else b""
    for network in (False, True)
}


class Tree(NamedTuple):
    """A detached mount, and the folder of the template that it covers in the box."""

    fd: int
    place: str


class Base(NamedTuple):
    """Parts that a box is built from: parts of the host, the folder of devices, and mounts mapped to the box's user.

    ``alone``: no other box has the same host user.
    """

    parts: list[hostparts.Part]
    dev: str
    trees: list[Tree]
    alone: bool


def run(spec: dict[str, Any], base: Base, outer: int, control: int, offering: int, group: Joining | None) -> None:
    """Become PID 1 of the box that ``spec`` describes and serve it. Never returns.

    The working folder is that of the fork server. ``outer``: this process's uid in the fork server's user namespace.
    ``control``: the control socket. ``offering``: socket over which the box's listening sockets are sent. ``group``:
    the control group to join.
    """
    place = control
    try:
        for fd in group.join if group is not None else ():
            os.write(fd, b"0")
        if group is not None:  # hides the name of the group from the box
            kernel.unshare(kernel.CLONE_NEWCGROUP)
        for tree in base.trees:
            kernel.move_mount(tree.fd, tree.place)
        _keep({CONTROL: control, OFFER: offering, **({EVENTS: group.events} if group is not None else {})})
        place = CONTROL
        boxnet.offer(spec["listen"], OFFER)
        _become_user(outer)
        kernel.enter_time()
        _mounts(spec, base)
        _limits(spec, base)
        _confine(spec)
        agent = Agent(CONTROL, UPPER, spec, EVENTS if group is not None else None)
    except BaseException as error:
        detail = str(error) or type(error).__name__
        _report(place, "setup", detail)
        os._exit(1)
    try:
        agent.serve()
    except BaseException as error:
        _report(CONTROL, "agent", repr(error))
    os._exit(0)


def _report(control: int, what: str, detail: str) -> None:
    """Send an error to the host and wait until it hangs up: a socket closed with unread data loses what it sent."""
    try:
        os.write(control, encode({"id": 0, "error": what, "message": detail}))
        while os.read(control, 1 << 16):
            pass
    except OSError:
        pass


def _keep(sockets: dict[int, int]) -> None:
    """Close all descriptors but the sockets, which get fixed numbers; standard streams become ``/dev/null``."""
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    # Duplicated above the numbers that they will get, so that no dup2 overwrites one that is still needed.
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for number, fd in sockets.items()}
    for number, fd in moved.items():
        os.dup2(fd, number, inheritable=False)
    kernel.close_range(UPPER, UPPER)
    kernel.close_range(max(moved) + 1)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _become_user(outer: int) -> None:
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root and the maps cannot be written
    kernel.map_user(UID, outer, outer)
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")  # a machine short of memory kills processes of boxes first, the largest of them
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _mounts(spec: dict[str, Any], given: Base) -> None:
    size = _size(spec["disk"]) if spec["disk"] is not None else ""
    inner = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("upper", "upper", "tmpfs", inner, f"mode=755{size}")
    os.mkdir("upper/u", 0o755)
    os.mkdir("upper/w", 0o755)
    fd = kernel.open_tree("upper")
    if fd != UPPER:
        os.dup2(fd, UPPER, inheritable=False)
        os.close(fd)
    base = [] if spec["whole"] else ["base"]
    lower = ":".join([*(f"snaps/{name}/u" for name in spec["snapshots"]), *reversed(spec["layers"]), *base])
    options = f"lowerdir={lower},upperdir=upper/u,workdir=upper/w,userxattr"
    if len(options) > 4000:
        raise OSError(7, f"{len(spec['layers'])} layers and {len(spec['snapshots'])} snapshots are too many to stack")
    kernel.mount("box", "new", "overlay", inner, options)
    for part in hostparts.parts_of_root(given.parts, "new") if spec["whole"] else given.parts:
        hostparts.mount(part, "new")
    os.makedirs("new/dev", exist_ok=True)
    kernel.mount(given.dev, "new/dev", flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("proc", "new/proc", "proc", _PROC, "hidepid=2")
    shm = min(_SHM, spec["disk"]) if spec["disk"] is not None else _SHM
    kernel.mount("shm", "new/dev/shm", "tmpfs", inner, f"mode=1777{_size(shm)}")
    # Terminals that belong to the box: many programs run their commands in one.
    terminals = f"newinstance,ptmxmode=0666,mode=600,max={_TERMINALS}"
    kernel.mount("devpts", "new/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, terminals)
    os.chdir("new")
    kernel.pivot_root(".", ".")
    kernel.umount(".")
    os.chdir("/")


def _size(size: int) -> str:
    """Return size and inode options of a tmpfs; the kernel's default number of inodes depends on its memory."""
    return f",size={size},nr_inodes={max(_INODES, size >> 12)}"


def _limits(spec: dict[str, Any], base: Base) -> None:
    socket.sethostname("box")
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _DESCRIPTORS if files == resource.RLIM_INFINITY else min(_DESCRIPTORS, files // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for priority in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        resource.setrlimit(priority, (0, 0))  # a host that allows more would let one box keep the processors for itself
    if not base.alone:
        _limit_shared()
    if spec["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["file_size"],) * 2)
    if spec["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (spec["memory"],) * 2)
    if spec["processes"] is not None:
        # RLIMIT_NPROC is counted per user namespace (from Linux 5.14), PID 1 included. pid_max is per pid namespace
        # from 6.14 on and a second limit there; older kernels refuse the write.
        resource.setrlimit(resource.RLIMIT_NPROC, (spec["processes"] + 1,) * 2)
        try:
            with open("/proc/sys/kernel/pid_max", "w") as file:
                file.write(str(_RESERVED_PIDS + max(spec["processes"], 1) + 1))
        except OSError:
            pass


def _limit_shared() -> None:
    """Lower the box's limits on inotify and signals, so that other boxes of the same host user keep their share.

    A user namespace has limits of its own in addition to those of the host user.
    """
    for what in ("instances", "watches"):
        with open(f"/proc/sys/fs/inotify/max_user_{what}") as file:
            part = max(1, int(file.read()) // _SHARE)
        with open(f"/proc/sys/user/max_inotify_{what}", "w") as file:
            file.write(str(part))
    signals = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    if signals != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (max(_FEWEST_SIGNALS, signals // _SHARE),) * 2)


def _confine(spec: dict[str, Any]) -> None:
    # /proc becomes read-only, so that no process can lower its oom_score_adj: a machine short of memory would then
    # kill the first process of the box before it.
    kernel.mount("proc", "/proc", flags=_PROC | kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY)
    os.umask(0o022)
    environment = {
        "PATH": SYSTEM_PATH if spec["whole"] else command_path(),
        "HOME": HOME,
        "LANG": "C.UTF-8",
        # Python trusts bytecode by time stamp (whole seconds) and size, so an edit of equal length within one second
        # would run the old code.
        "PYTHONDONTWRITEBYTECODE": "1",
        **spec["env"],
    }
    os.environ.clear()
    os.environ.update(environment)
    spec["environment"] = environment
    spec["finders"] = pyrun.prepare(search_path())
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_bounding_set()
    kernel.install_seccomp(_FILTERS[spec["listen"] is not None])
    kernel.capset(1 << kernel.CAP_SYS_PTRACE)
