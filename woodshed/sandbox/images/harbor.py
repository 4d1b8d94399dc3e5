"""Makes a root filesystem from a Harbor task's ``environment/`` folder, without a container engine.

The image that its Dockerfile starts from is mapped to a Debian release; packages come from there, and every other
command runs in a box. The root is what the box holds at the end, packed as an archive that is unpacked as untrusted.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.guest.template import SYSTEM_PATH
from woodshed.sandbox.layers import digest
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox, SandboxError

from .debian import build_debian
from .dockerfile import Dockerfile, DockerfileError, Step, expand, read_dockerfile
from .store import Note, RootStore, furnish

_MAX_FILES = 500_000


def unpack(archive: Path, folder: Path, *, max_bytes: int) -> None:
    """Write the members of an untrusted tar ``archive`` into the empty ``folder``.

    Links are made last, after all writing, so that no member can lead out of the folder through one. Devices, pipes and
    sockets are left out; hard links become copies. Raises SandboxError for names that lead out of the folder, and
    if the contents, copies included, exceed ``max_bytes``.
    """
    links: list[tuple[Path, str]] = []
    left, files = max_bytes, 0
    try:
        with tarfile.open(archive) as members:
            for member in members:
                target = folder / _relative(member.name)
                source = folder / _relative(member.linkname) if member.islnk() else None
                files += 1
                left -= member.size if source is None else source.stat().st_size
                if left < 0 or files > _MAX_FILES:
                    raise SandboxError(f"the root filesystem has more than {max_bytes} bytes or {_MAX_FILES} files")
                if member.issym():
                    links.append((target, member.linkname))
                elif member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isreg() or member.islnk():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if source is not None:
                        shutil.copy(source, target)
                        continue
                    data = members.extractfile(member)
                    assert data is not None
                    with target.open("wb") as file:
                        while piece := data.read(1 << 20):
                            file.write(piece)
                    target.chmod(0o755 if member.mode & 0o111 else 0o644)
        for target, to in links:
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target):
                raise SandboxError(f"the root filesystem names {target.relative_to(folder)} twice")
            target.symlink_to(to)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SandboxError(f"the root filesystem that came out of the box cannot be unpacked: {error}") from None


def _relative(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxError(f"the root filesystem names {name!r}, which leads out of it")
    return "/".join(parts)


_DEBIAN = re.compile(r"(?:docker\.io/)?(?:library/)?(?:debian|buildpack-deps):([a-z]+)(?:-slim)?")
_PYTHON = re.compile(r"(?:docker\.io/)?(?:library/)?python:(3\.\d+)(?:\.\d+)?(?:-slim)?(?:-([a-z]+))?")
_PYTHON_OF = {"3.11": "bookworm", "3.13": "trixie"}
"""Python version -> Debian release that has that version."""
_MINIMAL = ("dash", "coreutils", "tar")
_PIECE = 48 << 20
_MAX_BYTES = 8 << 30
_LIMITS = Limits(memory=4 << 30, processes=1024, cpu_seconds=None, file_size=None, disk=_MAX_BYTES)


async def build_harbor(
    store: RootStore,
    folder: Path,
    backend: Backend,
    *,
    base: str = "",
    minimal: bool = False,
    egress: Egress | None = None,
    refresh: bool = False,
    seconds: float = 1800.0,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Make the root that the ``Dockerfile`` in ``folder`` describes; return its name.

    A folder whose root was made before returns that one, unless ``refresh``. ``base``: Debian release to use in place
    of the file's image. ``minimal``: only a shell, coreutils and tar in place of the packages that every Debian system
    has. ``egress``: what RUN may reach; None for nothing. ``seconds``: time limit of each RUN. Raises DockerfileError
    naming the line that cannot be followed, or that failed, with its output.
    """
    folder = folder.resolve()
    file = read_dockerfile(folder / "Dockerfile")
    suite, packages = _release(file, base)
    wanted = sorted({*packages, *file.packages, *(_MINIMAL if minimal else ["tar"])})
    recipe = {
        "kind": "harbor",
        "folder": digest(folder),
        "suite": suite,
        "packages": wanted,
        "essential": not minimal,
        "allow": list(egress.allow) if egress is not None else [],
    }
    if not refresh and (name := store.find(recipe)):
        return name
    debian = await asyncio.to_thread(
        build_debian, store, wanted, suite=suite, essential=not minimal, refresh=refresh, say=say
    )
    spec = BoxSpec(root=store.path(debian), workdir="/", limits=_LIMITS, egress=egress)
    box = await backend.create(spec)
    with tempfile.TemporaryDirectory(prefix="woodshed-root-", dir=store.folder) as place:
        try:
            env, workdir = await _follow(box, file, folder, seconds, say)
            say("taking the root out of the box")
            archive = Path(place) / "root.tar"
            await _take(box, archive)
        finally:
            await box.close()

        def fill(target: Path) -> Note:
            unpack(archive, target, max_bytes=_MAX_BYTES)
            _prune(target, os.path.realpath(sys.base_prefix)[1:])
            furnish(target)
            return Note(recipe, store.note(debian).packages, env, workdir)

        return await asyncio.to_thread(store.add, "harbor", recipe, fill)


def _release(file: Dockerfile, base: str) -> tuple[str, list[str]]:
    """Return the Debian release that the image is mapped to, and the image's packages besides the essential ones."""
    python = _PYTHON.fullmatch(file.image)
    is_python = file.image.partition(":")[0].endswith("python")
    packages = ["python3", "python-is-python3", "python3-venv", "python3-pip"] if is_python else []
    if base:
        return base, packages
    if found := _DEBIAN.fullmatch(file.image):
        return found[1], packages
    if python and python[1] in _PYTHON_OF and python[2] in (None, "", _PYTHON_OF[python[1]]):
        return _PYTHON_OF[python[1]], packages
    raise DockerfileError(
        f"{file.path}: FROM {file.image} has no counterpart among Debian's packages; there is debian:RELEASE, "
        f"{', '.join(f'python:{version}' for version in _PYTHON_OF)}; give another release, or use the docker backend"
    )


async def _follow(
    box: Sandbox, file: Dockerfile, folder: Path, seconds: float, say: Callable[[str], None]
) -> tuple[dict[str, str], str]:
    """Carry out every step; return the environment and the working folder at the end."""
    env: dict[str, str] = {}
    arguments: dict[str, str] = {}
    workdir = "/"
    for step in file.steps:
        where = f"{file.path}:{step.line}"
        values = {"PATH": SYSTEM_PATH, **arguments, **env}
        if step.kind == "RUN":
            say(f"line {step.line}: RUN {step.words[0][:60]}")
            done = await box.exec(step.words[0], cwd=workdir, env={"HOME": "/root", **values}, timeout=seconds)
            if done.returncode:
                words = " ".join((done.stderr or done.stdout).decode(errors="replace")[-600:].split())
                why = f"timed out after {seconds:.0f} s" if done.timed_out else f"ended with {done.returncode}: {words}"
                raise DockerfileError(f"{where}: RUN {why}")
        elif step.kind == "COPY":
            await _copy(box, step, folder, workdir, values, where)
        elif step.kind == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(workdir, expand(step.words[0], values)))
            await box.exec(["mkdir", "-p", workdir])
        elif step.kind == "ENV":
            env[step.words[0]] = expand(step.words[1], values)
        else:
            arguments[step.words[0]] = expand(step.words[1], values)
    return env, workdir


async def _copy(box: Sandbox, step: Step, folder: Path, workdir: str, values: dict[str, str], where: str) -> None:
    *names, to = (expand(word, values) for word in step.words)
    target = posixpath.join(workdir, to)
    files: dict[str, bytes] = {}
    programs: list[str] = []
    for name in names:
        found = sorted(folder.glob(name.lstrip("/"))) if name.strip("./") else [folder]
        inside = [path for path in found if folder in (path, *path.parents) and ".." not in path.parts]
        if not inside or len(inside) != len(found):
            raise DockerfileError(f"{where}: COPY {name}: there is no such file in {folder}")
        into = to.endswith("/") or len(names) > 1 or len(found) > 1 or to in (".", "..")
        for path in inside:
            for each in all_below(path) if path.is_dir() else [path]:
                if each.is_symlink():
                    raise DockerfileError(f"{where}: COPY of a symbolic link ({each.name}) cannot be followed")
                if each.is_file():
                    below = each.relative_to(path).as_posix() if path.is_dir() else (path.name if into else "")
                    place = posixpath.normpath(posixpath.join(target, below))
                    files[place] = each.read_bytes()
                    programs += [place] if each.stat().st_mode & 0o100 else []
    if names and all((folder / name.lstrip("/")).is_dir() for name in names):
        await box.exec(["mkdir", "-p", target])
    try:
        await box.put(files)
    except OSError as error:
        raise DockerfileError(f"{where}: COPY: {error}") from None
    if programs:
        await box.exec(["chmod", "755", "--", *programs])


async def _take(box: Sandbox, archive: Path) -> None:
    """Read the box's whole root as a tar archive, piece by piece; bounded, because the box decides the size."""
    inside = "/var/tmp/.root.tar"
    pack = f"cd / && tar --one-file-system -cf {inside} --exclude=.{inside} --exclude='./tmp/*' ."
    done = await box.exec(pack, timeout=900)
    if done.returncode:
        raise SandboxError(f"the root cannot be packed: {done.stderr.decode(errors='replace')[-600:]}")
    with archive.open("wb") as file:
        for at in range(_MAX_BYTES // _PIECE + 2):
            command = f"dd if={inside} bs={_PIECE} skip={at} count=1 status=none"
            piece = await box.exec(command, timeout=300, max_output=_PIECE + 1)
            if piece.returncode:
                raise SandboxError(f"the root cannot be read: {piece.stderr.decode(errors='replace')[-600:]}")
            if not piece.stdout:
                return
            file.write(piece.stdout)
    raise SandboxError(f"the root is larger than {_MAX_BYTES} bytes")


def _prune(folder: Path, place: str) -> None:
    """Remove the empty folders in which the box saw the host's interpreter."""
    path = folder / place
    while path != folder and path.is_dir() and not os.listdir(path):
        path.rmdir()
        path = path.parent
