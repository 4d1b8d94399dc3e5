"""Gives every box a host user of its own, if root makes the boxes.

The kernel counts many of its limits by host user: pipe buffers, descriptors in flight, pending signals, file watches.
Boxes that share a user could exhaust them for each other. A user serves one box after another and owns nothing on the
host: what boxes start from belongs to ``BOX_UID`` (or, in a snapshot, to the user of the box that was sealed) and is
mounted with owners mapped to the user of each box (mount_setattr(2), ``MOUNT_ATTR_IDMAP``).
"""

from __future__ import annotations

import os
import secrets
import signal
from dataclasses import dataclass

from woodshed.sandbox.guest import kernel, template
from woodshed.sandbox.guest.template import BOX_UID, UID

_FIRST, _END, _BLOCK = 2_000_200_001, 2_147_483_648, 4096
"""Range of uids: above those that systemd gives to containers and sssd to directory users, below 2^31. Every fork
server takes one block of it."""


@dataclass(frozen=True)
class User:
    """A host user for one box at a time.

    ``of_host``, ``of_boxes``: descriptors of user namespaces that map the owner of the base, and of a snapshot, to this
    user. ``dev``: folder with device nodes of its own.
    """

    uid: int
    of_host: int
    of_boxes: int
    dev: str


class Users:
    """Pool of host users. Needs real root, and the fork server's folder (with ``devs``) as working folder."""

    def __init__(self) -> None:
        """Raise OSError if the kernel cannot map owners of mounts or there are too few users."""
        self._next = _FIRST + _BLOCK * secrets.randbelow((_END - _FIRST) // _BLOCK)
        self._last = self._next + _BLOCK - 1
        for uid in (self._next, self._last):
            if not kernel.is_mapped(uid):
                raise OSError(22, f"our user namespace has no user {uid}")
        self._free: list[User] = []
        first = self._make()
        os.close(kernel.mapped_tree("base", first.of_host))
        os.close(os.open(f"{first.dev}/null", os.O_RDWR))
        self._free.append(first)

    def take(self) -> User:
        """Return a user that no living box has. Raises OSError if all are taken."""
        return self._free.pop() if self._free else self._make()

    def give(self, user: User) -> None:
        """Take a user back after its box has ended."""
        self._free.append(user)

    def _make(self) -> User:
        if self._next > self._last:
            raise OSError(11, f"{_BLOCK} boxes have a user of their own")
        uid, self._next = self._next, self._next + 1
        of_host = _namespace(BOX_UID, uid)
        try:
            of_boxes = _namespace(UID, uid)
        except OSError:
            os.close(of_host)
            raise
        dev = f"devs/{uid}"
        try:
            template.build_dev(dev, own=True)
        except OSError:
            os.close(of_host)
            os.close(of_boxes)
            raise
        return User(uid, of_host, of_boxes, dev)


def _namespace(inside: int, outside: int) -> int:
    """Open a descriptor of a user namespace that maps one user and the group of the same number."""
    waiting, held = os.pipe()
    try:
        pid = kernel.clone(kernel.CLONE_NEWUSER)
    except OSError:
        os.close(waiting)
        os.close(held)
        raise
    if pid == 0:
        try:
            # The child waits on the pipe, so it ends when its parent does, and keeps no other descriptor open. A
            # parent-death signal would be missed if the parent died before it was set.
            os.dup2(waiting, 0)
            kernel.close_range(1)
            os.read(0, 1)
        finally:
            os._exit(0)
    os.close(waiting)
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"{inside} {outside} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(held)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
