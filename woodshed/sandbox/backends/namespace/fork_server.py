"""The process that boxes are cloned from: one thread, light imports, a mount namespace of its own.

It is started fresh (never forked from a process with threads), assembles the shared read-only template, then serves
one sequenced-packet socket: create, kill, adopt and release snapshots. It ends when the owner does (end of file), and
every box ends with it (parent-death signal). The kernel then removes mounts and processes, so nothing is left over.

Started by root it works as an ordinary host user (``BOX_UID``) who owns nothing else, so that even a box that broke out
would not be root; started by anyone else it makes its own user namespace first.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import resource
import signal
import socket
import sys
from typing import Any

from woodshed.sandbox.guest import kernel, pyrun, template
from woodshed.sandbox.guest.cgroups import Groups, Joining, find_place
from woodshed.sandbox.guest.template import BOX_UID
from woodshed.sandbox.host.owner import KILLED, Owner

from . import hostparts
from . import init as boxinit
from .users import User, Users


class ForkServer:
    """Creates and ends boxes. Its state: the living boxes, and the folders that layers come from."""

    def __init__(self, owner: Owner, root: str, *, cgroups: bool) -> None:
        self._owner, self._root = owner, root
        self._names: dict[int, int] = {}  # pid -> box
        self._taken: dict[int, User] = {}  # pid -> host user of the box
        self._pids: dict[int, int] = {}  # box -> pid
        self._killed: set[int] = set()  # pids that were killed on request
        self._stores: dict[str, str] = {}
        self.privileged = os.geteuid() == 0
        self._enter()
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("woodshed", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=64m")
        for name in ("upper", "new", "stores", "snaps", "devs"):
            os.mkdir(f"{root}/{name}")
        os.chdir(root)  # relative paths from here on: the user of boxes may be unable to enter the folder's parents
        self._groups = _groups(os.path.basename(root)) if cgroups else None
        self._parts = hostparts.build(root, BOX_UID if self.privileged else 0)
        self._users = _users() if self.privileged else None
        template.build_dev("dev")
        if self.privileged:
            os.setgroups([])
            self._become_user()

    def _enter(self) -> None:
        if self.privileged and not kernel.is_mapped(BOX_UID):
            self.privileged = False  # we are root of a user namespace that has too few users for boxes
        elif self.privileged:
            try:
                kernel.unshare(kernel.CLONE_NEWNS)
                return
            except PermissionError:  # we are root in a container: go on as an ordinary user
                self.privileged = False
                os.setgroups([])
                os.setresgid(BOX_UID, BOX_UID, BOX_UID)
                os.setresuid(BOX_UID, BOX_UID, BOX_UID)
                kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        kernel.map_user(0, uid, gid)

    @property
    def cgroups(self) -> str:
        """``v1`` or ``v2`` if boxes have control groups, else an empty string."""
        return self._groups.version if self._groups is not None else ""

    @property
    def users(self) -> bool:
        """True if every box has a host user of its own."""
        return self._users is not None

    def serve(self) -> None:
        """Serve the owner until it goes away."""
        self._owner.serve(self._handle, self._ended)

    def close(self) -> None:
        """Kill every box and wait for it, so that nothing outlives the fork server."""
        self._owner.close()
        for pid in list(self._names):
            os.kill(pid, signal.SIGKILL)
        for pid in list(self._names):
            os.waitpid(pid, 0)
        self._become_root()
        if self._groups is not None:
            self._groups.close()
        os.chdir("/")
        kernel.umount(self._root)
        with contextlib.suppress(OSError):  # the parent folder may be gone already
            os.rmdir(self._root)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        operation = message["op"]
        if operation == "create" and len(fds) != 2:  # the kernel drops descriptors where the process may have no more
            self._owner.send({"gone": message["box"], "error": "the helper process may open no more files"})
        elif operation == "create":
            self._create(message, *fds)
        elif operation == "kill":
            pid = self._pids.get(message["box"])
            if pid is None:
                self._owner.send({"gone": message["box"]})
            else:
                if not _is_ending(pid):  # the owner may learn of a box's end before this process does
                    self._killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        elif operation == "adopt":
            self._answer(message, self._adopt)
        elif operation == "release":
            self._answer(message, self._release)

    def _create(self, spec: dict[str, Any], control: int, offering: int) -> None:
        group, user, trees = None, None, list[boxinit.Tree]()
        try:
            for name in spec["preload"]:
                if name.partition(".")[0] not in sys.stdlib_module_names:
                    raise OSError(22, f"preload {name!r}: only modules of the standard library can be preloaded")
                self._import(name)
            spec["layers"] = [self._layer(path) for path in spec["layers"]]
            group = self._make_group(spec)
            spec["shares"] = self._groups is not None and self._groups.cpu
            user, trees = self._user(spec)
            self._become_user(user)
            pid = kernel.clone(boxinit.NAMESPACES)
        except (OSError, ImportError) as error:
            self._become_user()
            _close(group, trees)
            if user is not None and self._users is not None:
                self._users.give(user)
            self._leave_group(spec["box"])
            self._owner.send({"gone": spec["box"], "error": str(error)})
            return
        if pid == 0:
            outer = user.uid if user is not None else BOX_UID if self.privileged else 0
            dev = user.dev if user is not None else "dev"
            boxinit.run(spec, boxinit.Base(self._parts, dev, trees, user is not None), outer, control, offering, group)
        self._become_user()
        _close(group, trees)
        self._names[pid], self._pids[spec["box"]] = spec["box"], pid
        if user is not None:
            self._taken[pid] = user

    def _user(self, spec: dict[str, Any]) -> tuple[User | None, list[boxinit.Tree]]:
        """Return a host user for the box, and the mounts that it starts from, mapped to that user."""
        if self._users is None:
            return None, []
        self._become_root()
        try:
            user = self._users.take()
            try:
                return user, _trees(spec, user)
            except OSError as error:
                self._users.give(user)
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                return None, []  # a layer lies on a filesystem without idmapped mounts: the box gets the common user
        finally:
            self._become_user()

    def _make_group(self, spec: dict[str, Any]) -> Joining | None:
        """Make the box's control group. Its memory limit includes files, because a box writes to a tmpfs."""
        if self._groups is None:
            return None
        bounded = spec["memory"] is not None and spec["disk"] is not None
        memory = spec["memory"] + spec["disk"] if bounded else None
        self._become_root()
        try:
            return self._groups.make(spec["box"], memory, None if spec["processes"] is None else spec["processes"] + 1)
        finally:
            self._become_user()

    def _leave_group(self, box: int) -> bool:
        """Remove the box's control group; return whether the kernel killed a process of it for lack of memory."""
        if self._groups is None:
            return False
        self._become_root()
        try:
            return self._groups.remove(box)
        finally:
            self._become_user()

    def _import(self, name: str) -> None:
        if name not in sys.modules:
            self._become_root()  # the user of boxes may be unable to read the interpreter's folder
            try:
                importlib.import_module(name)
            finally:
                self._become_user()

    def _layer(self, path: str) -> str:
        """Return the path of a layer for overlayfs: as root a bind mount of it in our folder, else the path itself."""
        if any(c in path for c in ",:\\"):
            raise OSError(22, f"layer {path}: its path must not contain a comma, a colon or a backslash")
        if not self.privileged:
            if not os.path.isdir(path):
                raise OSError(2, f"layer {path}: no such folder, or not readable by this user")
            return path
        parent, name = os.path.split(path)
        if parent not in self._stores:
            self._become_root()
            try:
                place = f"stores/{len(self._stores)}"
                os.mkdir(place)
                kernel.mount(parent, place, flags=kernel.MS_BIND)
            except OSError as error:
                raise OSError(error.errno, f"layer {path}: {error.strerror}") from None
            finally:
                self._become_user()
            self._stores[parent] = place
        relative = f"{self._stores[parent]}/{name}"
        if not os.access(relative, os.R_OK | os.X_OK, effective_ids=True):
            raise OSError(2, f"layer {path}: no such folder, or not readable for other users (chmod a+rX)")
        return relative

    def _adopt(self, message: dict[str, Any]) -> None:
        """Take the writable filesystem of a box from its first process, which has stopped all others.

        The descriptor is taken with pidfd_getfd, not sent: descriptors in flight count against the host user, and
        other boxes could exhaust that limit.
        """
        pid = self._pids.get(message["box"])
        if pid is None:
            raise OSError(3, "the box has ended")
        place = f"snaps/{message['name']}"
        self._become_root()
        try:
            fd = kernel.take_descriptor(pid, boxinit.UPPER)
            try:
                os.mkdir(place)
                kernel.move_mount(fd, place)
                kernel.seal_mount(place, recursive=True, nodev=True)
            finally:
                os.close(fd)
        finally:
            self._become_user()

    def _release(self, message: dict[str, Any]) -> None:
        place = f"snaps/{message['name']}"
        self._become_root()
        try:
            kernel.umount(place)
            os.rmdir(place)
        finally:
            self._become_user()

    def _ended(self, pid: int, status: int) -> None:
        box = self._names.pop(pid, None)
        user = self._taken.pop(pid, None)
        if user is not None and self._users is not None:
            self._users.give(user)
        if box is not None:
            del self._pids[box]
            full = self._leave_group(box) and os.WIFSIGNALED(status)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and pid not in self._killed
            self._killed.discard(pid)
            # Nothing in a box can kill its first process, so the machine killed it. Without a control group, the reason
            # may have been the box's own memory.
            outside = killed and not full and self._groups is not None
            error = "out of memory" if full else KILLED if outside else ""
            self._owner.send({"gone": box, **({"error": error} if error else {})})

    def _answer(self, message: dict[str, Any], action: Any) -> None:
        try:
            action(message)
        except OSError as error:
            self._owner.send({"reply": message["reply"], "error": str(error)})
        else:
            self._owner.send({"reply": message["reply"]})

    def _become_root(self) -> None:
        if self.privileged:
            os.seteuid(0)
            os.setegid(0)

    def _become_user(self, user: User | None = None) -> None:
        if self.privileged:
            self._become_root()  # only root can become another user
            uid = user.uid if user is not None else BOX_UID
            os.setegid(uid)
            os.seteuid(uid)
            # Without CAP_KILL boxes of other users would outlive us: the parent-death signal needs permission too.
            kernel.make_effective(kernel.CAP_KILL)


def _is_ending(pid: int) -> bool:
    """Return whether a process has begun to exit (PF_EXITING of its flags, see proc(5)); False if unreadable."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return bool(int(file.read(4096).rpartition(b")")[2].split()[6]) & 4)
    except OSError:  # this process may open no more files
        return False


def _trees(spec: dict[str, Any], user: User) -> list[boxinit.Tree]:
    """Copy the mounts that a box starts from, with owners mapped to its user."""
    stores = {layer.rpartition("/")[0] for layer in spec["layers"]}
    places = [("base", user.of_host), *((store, user.of_host) for store in sorted(stores))]
    places += [(f"snaps/{name}", user.of_boxes) for name in spec["snapshots"]]
    trees: list[boxinit.Tree] = []
    try:
        for place, namespace in places:
            trees.append(boxinit.Tree(kernel.mapped_tree(place, namespace), place))
    except OSError:
        _close(None, trees)
        raise
    return trees


def _close(group: Joining | None, trees: list[boxinit.Tree]) -> None:
    files = (*group.join, group.events) if group is not None else ()
    for fd in (*files, *(tree.fd for tree in trees)):
        os.close(fd)


def _users() -> Users | None:
    try:
        return Users()
    except OSError:  # boxes share one user then, and their limits still hold
        return None


def _groups(name: str) -> Groups | None:
    place = find_place()
    try:
        return Groups(place, name) if place is not None else None
    except OSError:  # the limits hold without control groups; the probe says what enforces them
        return None


def main(host: socket.socket) -> None:
    """Entry point: the second packet on ``host`` is the configuration ``{"root": folder}``."""
    import gc

    owner = Owner(host)
    # The kernel refuses to send descriptors while more of them are in flight, over all processes of this user, than
    # the sender may have open (RLIMIT_NOFILE). Boxes have a lower limit than this process, so they cannot block its
    # sending. The other two limits of this process bound all boxes of its user together.
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_SIGPENDING):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))
    try:
        fork_server = ForkServer(owner, owner.configuration["root"], cgroups=owner.configuration["cgroups"])
    except OSError as error:
        owner.failed(error)
        return
    pyrun.prepare_streams()
    gc.collect()
    gc.freeze()
    gc.disable()
    owner.ready(privileged=fork_server.privileged, cgroups=fork_server.cgroups, users=fork_server.users)
    try:
        fork_server.serve()
    finally:
        fork_server.close()
