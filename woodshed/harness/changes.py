"""What an episode changed in a folder of text files, and how to bring it back."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.protocol import Sandbox

SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
MAX_TOTAL = 64 << 20


class FolderError(Exception):
    """A folder cannot be worked on; the message says why."""


def read_folder(folder: Path) -> dict[str, bytes]:
    """Regular files by relative path, without caches and version control. Raises FolderError beyond 64 MiB, and
    where something cannot be read."""
    if not folder.is_dir():
        raise FolderError(f"{folder}: not a folder")
    files: dict[str, bytes] = {}
    total = 0
    try:
        for path in all_below(folder, skip=SKIPPED):
            if path.name in SKIPPED or path.is_symlink() or not path.is_file():
                continue
            total += path.stat().st_size
            if total > MAX_TOTAL:
                raise FolderError(f"{folder}: more than {MAX_TOTAL >> 20} MiB of files; name a smaller folder")
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    except OSError as error:
        raise FolderError(f"{folder}: cannot be read: {error}") from None
    return files


async def box_files(box: Sandbox) -> dict[str, bytes]:
    """The same selection from a box's workdir."""
    found = await box.get(["**/*"], max_bytes=MAX_TOTAL)
    return {name: data for name, data in found.items() if not SKIPPED.intersection(Path(name).parts)}


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Files whose content differs: path to new content, None where deleted."""
    names = sorted({*before, *after})
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def unified(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """A unified diff of all changes; binary files are named only."""
    parts = []
    for name in changed(before, after):
        try:
            old, new = before.get(name, b"").decode(), after.get(name, b"").decode()
        except UnicodeDecodeError:
            parts.append(f"Binary file {name} differs\n")
            continue
        source = f"a/{name}" if name in before else "/dev/null"
        target = f"b/{name}" if name in after else "/dev/null"
        for line in difflib.unified_diff(old.splitlines(True), new.splitlines(True), source, target):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def write_back(folder: Path, changes: Mapping[str, bytes | None]) -> None:
    """Apply changes that came out of a box. Raises FolderError for a path that leaves the folder; then nothing is
    written."""
    root = folder.resolve()
    for name in changes:
        target = root / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not target.parent.resolve().is_relative_to(root):
            raise FolderError(f"{folder}: refusing to write outside of it: {name!r}")
        if target.is_symlink() or target.is_dir():
            raise FolderError(f"{target}: is a link or a folder here; move it away first")
    for name, data in changes.items():
        target = root / name
        if data is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.new")
        temporary.write_bytes(data)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
