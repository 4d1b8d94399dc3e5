"""Folders of the host as boxes show them: read-only, each through an overlay that belongs to the box.

Locks, leases and watches belong to an inode. A bind mount shows the host's inodes, so a box could see what the host and
other boxes open and lock there; an overlay has inodes of its own. An overlay does not show what is mounted inside a
lower folder, so each mount below a folder becomes a part of its own. Folders of packages (``masks.py``) are covered by
two more lower folders: a replacement, and below it a whiteout of the folder that it replaces.
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from woodshed.sandbox.guest import kernel, template
from woodshed.sandbox.guest.masks import installed_packages


class Part(NamedTuple):
    """One overlay. ``lowers``: its lower folders, relative to the fork server's folder; ``target``: path in the box."""

    lowers: str
    target: str


def build(root: str, owner: int) -> list[Part]:
    """Assemble the template in the mounted folder ``root`` as ``template.build`` does, without devices."""
    base = f"{root}/base"
    shown = template.skeleton(base)
    for name in ("hosts", "masks", "whiteouts"):
        os.mkdir(f"{root}/{name}")
    parts = [part for _, source, target in shown for part in _stack(root, source, target)]
    template.give(base, owner)
    return parts


def parts_of_root(parts: list[Part], root: str) -> list[Part]:
    """Select the parts for a box with its own root filesystem ``root``: only the interpreter that PID 1 runs on.

    An interpreter in the host's /usr is not shown, because it would hide the root's own; ``exec_python`` then imports
    the packages that the root has for that version. Raises OSError if the root lacks a folder.
    """
    for name in ("proc", "dev", "tmp", "usr"):
        if not os.path.isdir(f"{root}/{name}"):
            raise OSError(2, f"the root filesystem has no folder /{name}")
    prefix = template.own_prefix()
    kept = [part for part in parts if prefix and f"/{part.target}/".startswith(f"{prefix}/")]
    for part in kept:
        os.makedirs(f"{root}/{part.target}", exist_ok=True)
    return kept


def mount(part: Part, root: str) -> None:
    """Mount a part in the box whose root folder is ``root``."""
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("host", f"{root}/{part.target}", "overlay", flags, f"lowerdir={part.lowers},userxattr")


def _stack(root: str, source: str, target: str) -> list[Part]:
    """Prepare the parts that show the host's ``source`` at ``target``, parents first.

    Mounts on single files are not shown: boxes see the file below the mount.
    """
    masked = installed_packages(source)
    places = [source, *(p for p in mounted_below(source) if not _inside(p, masked))]
    parts = []
    for place in places:
        inside = [path for path in masked if _inside(path, [place]) and _deepest(path, places) == place]
        relative = [os.path.relpath(path, place) for path in inside]
        number = len(os.listdir(f"{root}/hosts"))
        parts.append(Part(_lowers(root, number, place, relative), target + place[len(source) :]))
    return parts


def _lowers(root: str, number: int, place: str, masked: list[str]) -> str:
    lowers = [f"{kind}/{number}" for kind in ("masks", "whiteouts", "hosts")]
    for name in lowers:
        os.mkdir(f"{root}/{name}")
    masks, whiteouts, host = (f"{root}/{name}" for name in lowers)
    kernel.mount(place, host, flags=kernel.MS_BIND)
    kernel.seal_mount(host, recursive=False, nodev=True)
    for path in masked:
        os.makedirs(f"{masks}/{path}")
        with open(f"{masks}/{path}/{template.PATH_FILE}", "w") as file:
            file.write(template.SITE_PACKAGES + "\n")
        os.makedirs(os.path.dirname(f"{whiteouts}/{path}"), exist_ok=True)
        os.mknod(f"{whiteouts}/{path}", stat.S_IFCHR, os.makedev(0, 0))
    return ":".join(lowers)


def mounted_below(folder: str, mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """List the mount points below ``folder`` that are folders, parents first."""
    found = set()
    with open(mountinfo) as file:
        for line in file:
            path = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4])
            if path.startswith(f"{folder}/") and os.path.isdir(path):
                found.add(path)
    return sorted(found)


def _inside(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _deepest(path: str, places: list[str]) -> str:
    return max((place for place in places if _inside(path, [place])), key=len)
