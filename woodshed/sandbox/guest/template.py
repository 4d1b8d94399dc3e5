"""The read-only parts that all boxes of one helper process share, assembled once in its own mount namespace.

``usr`` is the host's /usr, ``prefix`` the running interpreter's installation (at the same path in the box), both with
every folder of packages masked (``masks.py``); ``dev`` holds six harmless devices, ``base`` is the skeleton of a root
folder. The host's root is never part of it. Namespace boxes show the host's folders by ``hostparts.py`` instead.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys

from . import kernel
from .masks import installed_packages

SITE_PACKAGES = "/opt/site-packages"
"""Folder where layers put Python packages: on the path of every interpreter in the box, also in isolated mode."""

PATH_FILE = "box.pth"
"""File that replaces installed packages and names SITE_PACKAGES."""

UID = 1000
BOX_UID = 1_877_001
"""Host user id of boxes when root runs them: not in any passwd file, outside the ranges that systems hand out."""

HOME = "/home/box"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of commands in a root filesystem that is not ours."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
ETC = {
    "passwd": f"root:x:0:0::/root:/bin/sh\nbox:x:{UID}:{UID}::{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": f"root:x:0:\nbox:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n",
    "hostname": "box\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


def build(root: str, owner: int) -> list[tuple[str, str]]:
    """Assemble the template in the mounted folder ``root``; its skeleton belongs to ``owner``.

    Returns what each box binds: (path below ``root``, path below the box's root).
    """
    base = f"{root}/base"
    parts = skeleton(base)
    os.mkdir(f"{root}/mask")
    with open(f"{root}/mask/{PATH_FILE}", "w") as file:
        file.write(SITE_PACKAGES + "\n")
    binds = [_bind(root, name, source, target) for name, source, target in parts]
    build_dev(f"{root}/dev")
    binds.append(("dev", "dev"))
    give(base, owner)
    return binds


def give(base: str, owner: int) -> None:
    """Give the skeleton ``base`` to ``owner``."""
    for folder, _, files in os.walk(base):
        os.chown(folder, owner, owner)
        for name in files:
            os.lchown(f"{folder}/{name}", owner, owner)
    for name in ("tmp", "var/tmp"):
        os.chmod(f"{base}/{name}", 0o1777)


def skeleton(base: str) -> list[tuple[str, str, str]]:
    """Make a box's root folder ``base`` without the folders that it shares with the host.

    Returns those: (a name, folder of the host, path below the box's root).
    """
    for name in ("usr", "proc", "dev", "etc", "opt", "run", "sys", "var/tmp", "tmp", "workspace", HOME[1:]):
        os.makedirs(f"{base}/{name}")
    for name, text in ETC.items():
        with open(f"{base}/etc/{name}", "w") as file:
            file.write(text)
    _copy_linker_files(base)
    _copy_certificates(base)
    parts = [("usr", "/usr", "usr")]
    for name in _TOP:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{base}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{base}/{name}")
            parts.append((name, f"/{name}", name))
    if prefix := own_prefix():
        os.makedirs(base + prefix, exist_ok=True)
        parts.append(("prefix", prefix, prefix[1:]))
    return parts


def shown_folders() -> list[str]:
    """List the folders of the host that every box shows at the same path, apart from what ``masks.py`` hides."""
    tops = [f"/{name}" for name in ("usr", *_TOP) if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    prefix = own_prefix()
    return [*tops, prefix] if prefix else tops


def own_prefix() -> str:
    """Return the installation folder of the running interpreter if it is outside of /usr, else an empty string."""
    prefix = os.path.realpath(sys.base_prefix)
    return "" if prefix == "/usr" or prefix.startswith("/usr/") else prefix


def command_path() -> str:
    """Return PATH for commands in a box: ``python3`` is the interpreter that ``exec_python`` runs in."""
    return f"{os.path.realpath(sys.base_prefix)}/bin:/usr/local/bin:/usr/bin:/bin"


def search_path() -> list[str]:
    """Return ``sys.path`` of an interpreter in the box: the standard library and SITE_PACKAGES."""
    installed = {"site-packages", "dist-packages"}
    standard = [p for p in sys.path if p.startswith(sys.base_prefix) and os.path.basename(p) not in installed]
    return [*standard, SITE_PACKAGES]


def _bind(root: str, name: str, source: str, target: str) -> tuple[str, str]:
    place = f"{root}/{name}"
    os.mkdir(place)
    kernel.mount(source, place, flags=kernel.MS_BIND | kernel.MS_REC)
    for folder in installed_packages(place):
        kernel.mount(f"{root}/mask", folder, flags=kernel.MS_BIND)
    kernel.seal_mount(place, recursive=True, nodev=True)
    return name, target


def build_dev(dev: str, *, own: bool = False) -> None:
    """Make the folder of devices: the host's nodes, or ``own`` ones, which only real root can make.

    Everyone who has the same node shares its inode, and so its locks and watches.
    """
    os.mkdir(dev)
    kernel.mount("dev", dev, "tmpfs", kernel.MS_NOSUID, "size=64k,mode=755")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            if own:
                os.mknod(f"{dev}/{name}", stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)
                os.chmod(f"{dev}/{name}", 0o666)
            else:
                open(f"{dev}/{name}", "w").close()
                kernel.mount(f"/dev/{name}", f"{dev}/{name}", flags=kernel.MS_BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + target, f"{dev}/{name}")
    os.symlink("pts/ptmx", f"{dev}/ptmx")
    for name in ("shm", "pts"):
        os.mkdir(f"{dev}/{name}")
    # Read-only mounts: a box can write to the device, but cannot change the node (its times).
    kernel.seal_mount(dev, recursive=True, nodev=False)


def _copy_certificates(base: str) -> None:
    """Copy the certificate authorities that the host trusts, for boxes that may use TLS."""
    for source in _CERTIFICATES:
        if os.path.isfile(source):
            os.makedirs(f"{base}/etc/ssl/certs")
            shutil.copyfile(source, f"{base}/etc/ssl/certs/ca-certificates.crt")
            return


def _copy_linker_files(base: str) -> None:
    if os.path.exists("/etc/ld.so.cache"):
        shutil.copyfile("/etc/ld.so.cache", f"{base}/etc/ld.so.cache")
    if os.path.isdir("/etc/alternatives"):
        os.mkdir(f"{base}/etc/alternatives")
        for name in os.listdir("/etc/alternatives"):
            if os.path.islink(f"/etc/alternatives/{name}"):
                os.symlink(os.readlink(f"/etc/alternatives/{name}"), f"{base}/etc/alternatives/{name}")
