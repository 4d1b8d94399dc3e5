"""Copy files and folders into a box and out of it."""

from __future__ import annotations

import errno
import posixpath
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.protocol import Sandbox, SandboxError

_BATCH = 32 << 20
_LARGEST = 1 << 30
_FOLDER = 8 << 30
_ENTRIES = 100_000


async def send_file(box: Sandbox, source: Path, target: str) -> None:
    """Copy a file of the host to an absolute path in the box, keeping it executable if it is."""
    await box.write(target, source.read_bytes())
    if source.stat().st_mode & 0o111:
        await _run(box, ["chmod", "755", "--", target])


async def send_folder(box: Sandbox, source: Path, target: str) -> None:
    """Merge a folder of the host into one in the box. Links are followed."""
    await _run(box, ["mkdir", "-p", "--", target])
    batch: dict[str, bytes] = {}
    folders: list[str] = []
    programs: list[str] = []
    for path in all_below(source):
        place = posixpath.join(target, path.relative_to(source).as_posix())
        if path.is_dir():
            folders.append(place)
        elif path.is_file():
            if sum(map(len, batch.values())) > _BATCH:
                await box.put(batch)
                batch = {}
            batch[place] = path.read_bytes()
            programs += [place] if path.stat().st_mode & 0o111 else []
    await box.put(batch)
    for command, names in ((["mkdir", "-p", "--"], folders), (["chmod", "755", "--"], programs)):
        for at in range(0, len(names), 500):
            await _run(box, [*command, *names[at : at + 500]])


async def fetch_file(box: Sandbox, source: str, target: Path, *, most: int = _LARGEST) -> int:
    """Copy a file out of the box and return its size. Raises FileNotFoundError, PermissionError (no regular file),
    OSError (EFBIG) if it has more than ``most`` bytes."""
    piece = await box.read(source, max_bytes=_BATCH)
    target.parent.mkdir(parents=True, exist_ok=True)
    pieces = size = 0
    with target.open("wb") as file:
        while True:
            pieces, size = pieces + 1, size + len(piece)
            if size > most:
                raise OSError(errno.EFBIG, f"larger than the {most} bytes that may be fetched", source)
            file.write(piece)
            if len(piece) < _BATCH:
                return size
            command = ["dd", f"if={source}", f"bs={_BATCH}", f"skip={pieces}", "count=1", "status=none"]
            piece = (await box.exec(command, timeout=300, max_output=_BATCH)).stdout


async def fetch_folder(box: Sandbox, source: str, target: Path) -> None:
    """Copy the regular files below a folder of the box; links are left out.

    The box is untrusted: raises SandboxError for a name that leads out of ``target``, and OSError (EFBIG) if a file has
    more than 1 GiB or all have more than 8 GiB (a sparse file takes no disk space in the box).
    """
    target.mkdir(parents=True, exist_ok=True)
    left = _FOLDER
    for name, kind, _ in await box.list(source, recursive=True, limit=_ENTRIES):
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise SandboxError(f"the box names a file {name!r}, which leads out of {target}")
        if kind == "dir":
            (target / name).mkdir(parents=True, exist_ok=True)
        elif kind == "file":
            left -= await fetch_file(box, posixpath.join(source, name), target / name, most=min(left, _LARGEST))


async def _run(box: Sandbox, command: list[str]) -> None:
    done = await box.exec(command)
    if done.returncode:
        raise OSError(f"{' '.join(command[:3])} in the box: {done.stderr.decode(errors='replace')[-300:].strip()}")
