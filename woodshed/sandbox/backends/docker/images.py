"""Images that belong to one owner: imported from folders, built or committed for its boxes, and removed with it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.guest import template
from woodshed.sandbox.guest.masks import installed_packages
from woodshed.sandbox.guest.template import UID
from woodshed.sandbox.host.spawner import is_dead, owner_mark
from woodshed.sandbox.protocol import SandboxError

from .engine import Engine


def stack(work: Path, layers: Sequence[Path], root: Path | None, out: Path) -> list[tuple[str, str]]:
    """Write an image's files as a tar archive ``out``; return the host folders that its containers show read-only.

    ``layers`` lie on top of ``root``; without a root, on a skeleton that shows the host's programs with all installed
    Python packages masked. All files belong to the box's user. ``work`` is an empty folder that must exist as long as
    the containers do. Raises OSError.
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
    # Each name once, from the topmost folder that has it: engines refuse archives with duplicate names.
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


_LABEL = "woodshed.owner"
_BUILD_SECONDS = 1800.0
_PIECE = 1 << 20


@dataclass(frozen=True)
class Image:
    """An image. ``binds``: (host folder, path) pairs that its containers show read-only. ``foreign``: an image that we
    did not assemble; containers keep its environment and file owners."""

    name: str
    binds: tuple[tuple[str, str], ...] = ()
    foreign: bool = False


class Images:
    """The images of one owner, with the folder ``work``. Owners share no images, so none can remove another's."""

    def __init__(self, engine: Engine, work: Path) -> None:
        self.engine = engine
        self._work = work
        self._owner = owner_mark()
        self._prefix = f"localhost/woodshed/{self._owner}-{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._stacks: dict[tuple[Path | None, tuple[Path, ...]], asyncio.Task[Image]] = {}
        self._built: set[str] = set()
        self._made: set[str] = set()

    @property
    def label(self) -> str:
        """Label that marks containers and images as this owner's."""
        return f"{_LABEL}={self._owner}"

    async def of_folders(self, root: Path | None, layers: Sequence[Path]) -> Image:
        """Return the image of these folders, importing it the first time. Raises SandboxError."""
        key = (root, tuple(layers))
        if key not in self._stacks:
            self._stacks[key] = asyncio.create_task(self._import(root, key[1]))
        task = self._stacks[key]
        try:
            return await asyncio.shield(task)
        except SandboxError:
            if self._stacks.get(key) is task:
                del self._stacks[key]  # the next call tries again
            raise

    async def build(self, folder: Path) -> str:
        """Build the ``Dockerfile`` of a folder with the engine. Raises SandboxError with the build's output."""
        if not (folder / "Dockerfile").is_file():
            raise SandboxError(f"{folder}: there is no Dockerfile to build")
        name = self._name("built")
        await self.engine.run("build", "--label", self.label, "--tag", name, str(folder), seconds=_BUILD_SECONDS)
        self._built.add(name)
        return name

    async def commit(self, container: str, origin: Image) -> Image:
        """Make an image of the files of a running container of ``origin``."""
        name = self._name("snapshot")
        await self.engine.run("commit", "--change", f"LABEL {self.label}", container, name, seconds=_BUILD_SECONDS)
        self._made.add(name)
        return replace(origin, name=name)

    async def size(self, name: str) -> int:
        """Return the size of an image in bytes, including layers that it shares with other images."""
        return int(await self.engine.run("image", "inspect", "--format", "{{.Size}}", name))

    async def remove(self, name: str) -> None:
        self._made.discard(name)
        await self.engine.run("rmi", "--force", name)

    async def close(self) -> None:
        """Remove every image of this owner."""
        for task in self._stacks.values():
            with contextlib.suppress(SandboxError):
                await task
        for name in sorted(self._made | self._built):
            with contextlib.suppress(SandboxError):
                await self.remove(name)
        self._stacks.clear()
        self._made.clear()
        self._built.clear()

    async def sweep(self) -> None:
        """Remove containers and images of owners that are dead."""
        for kind, listing, removing in (("containers", ["ps", "-a"], ["rm"]), ("images", ["images", "-a"], ["rmi"])):
            field = '{{.ID}} {{.Label "woodshed.owner"}}' if kind == "containers" else "{{.ID}}"
            rows = await self.engine.run(*listing, "--filter", f"label={_LABEL}", "--format", field)
            for row in dict.fromkeys(rows.splitlines()):
                number, _, owner = row.partition(" ")
                with contextlib.suppress(SandboxError):  # it may be gone already
                    if not owner:
                        form = f'{{{{index .Config.Labels "{_LABEL}"}}}}'
                        owner = await self.engine.run("image", "inspect", "--format", form, number)
                    if is_dead(owner):
                        await self.engine.run(*removing, "--force", number)

    async def _import(self, root: Path | None, layers: tuple[Path, ...]) -> Image:
        name = self._name("stack")
        place = Path(tempfile.mkdtemp(dir=self._work))
        archive = place / "image.tar"
        try:
            binds = await asyncio.to_thread(stack, place, layers, root, archive)
            change = ("--change", f"LABEL {self.label}")
            await self.engine.run("import", *change, "-", name, data=_pieces(archive), seconds=_BUILD_SECONDS)
        except OSError as error:
            raise SandboxError(f"{self.engine.name}: these folders cannot become an image: {error}") from None
        finally:
            archive.unlink(missing_ok=True)
        self._made.add(name)
        return Image(name, tuple(binds))

    def _name(self, kind: str) -> str:
        return f"{self._prefix}:{kind}-{next(self._numbers)}"


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
