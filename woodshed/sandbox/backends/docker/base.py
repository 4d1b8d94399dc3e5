"""What a container is made of that has no image of its own: a skeleton, the host's programs, layers or a root."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.guest import template
from woodshed.sandbox.guest.masks import installed_packages
from woodshed.sandbox.guest.template import UID


def stack(work: Path, layers: Sequence[Path], root: Path | None, out: Path) -> list[tuple[str, str]]:
    """Write an image's files as a tar archive ``out``; which folders of the host a container of it shows read-only.

    ``layers`` lie on top of ``root``, or of a skeleton that shows the host's programs with all installed Python
    packages masked. Everything belongs to the box's user. ``work`` is an empty folder, needed as long as containers
    are. Raises OSError.
    """
    binds: list[tuple[str, str]] = []
    folders = list(layers)
    if root is not None:
        folders.insert(0, root)
    else:
        base, mask = work / "base", work / "mask"
        base.mkdir()
        mask.mkdir()
        (mask / template.PATH_FILE).write_text(template.SITE_PACKAGES + "\n")
        mask.chmod(0o755)
        for _, source, target in template.skeleton(str(base)):
            binds.append((source, f"/{target}"))
            binds += [(str(mask), place) for place in installed_packages(source)]
        folders.insert(0, base)
    # Each name once, of the topmost folder that has it: engines take no archive that says a name twice.
    members = {path.relative_to(folder).as_posix(): path for folder in folders for path in (folder, *all_below(folder))}
    with tarfile.open(out, "w") as archive:
        for name in sorted(members):
            archive.add(members[name], name, recursive=False, filter=_ours)
    return binds


def _ours(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = UID
    member.uname = member.gname = ""
    if os.path.basename(member.name) == "tmp" and member.isdir():
        member.mode = 0o1777
    return member
