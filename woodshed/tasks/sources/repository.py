"""Read the files of a folder or of one commit of a git repository, and pack them into a reproducible archive.

Repositories are not trusted: git reads objects only. Nothing is checked out, and no hook, filter or submodule runs.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.record.atomic import write_whole
from woodshed.tasks.packages.history import LOG, LOG_FIRST_PARENT, Commit, parse_log
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.workspace import MAX_FILE_BYTES

QUIET = {"GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", "TZ": "UTC"}
"""Environment variables of every call of git."""
_OF_HOOKS = frozenset(
    (
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_COMMON_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_SHALLOW_FILE",
        "GIT_GRAFT_FILE",
        "GIT_PREFIX",
    )
)


def git_environment() -> dict[str, str]:
    """The environment of git, without the variables by which a hook that started us names its own repository."""
    return {k: v for k, v in os.environ.items() if k not in _OF_HOOKS} | QUIET


def git_command(verb: str, *arguments: str, more: Sequence[str] = ()) -> list[str]:
    """A git command that runs no program named by the repository's configuration; ``more``: options before the verb."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    if verb not in ("clone", "fetch"):  # a partial clone would fetch missing objects with a program that it names
        safe += ["-c", "protocol.allow=never"]
    return ["git", *safe, *more, verb, *arguments]


def blobs_of(answer: bytes, digests: Sequence[str]) -> list[bytes]:
    """Parse the output of ``git cat-file --batch`` for ``digests``. Raises KeyError with a digest that is missing."""
    stream = io.BytesIO(answer)
    found = []
    for digest in digests:
        head = stream.readline().split()
        if len(head) != 3 or head[0].decode() != digest:
            raise KeyError(digest)
        found.append(stream.read(int(head[2])))
        stream.read(1)
    return found


MAX_BYTES = 256 << 20
_HISTORY = "refs/heads/woodshed"
_SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "node_modules",
    ".tox",
    ".nox",
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".eggs",
}
_OUTPUTS = {"build", "dist", "env", "venv", "site-packages"}
"""Folders that a program makes as a rule, but which may be a project's own."""


@dataclass(frozen=True)
class Snapshot:
    """The ``files`` of a source. ``commit``: hex digits, empty for a plain folder. ``notes``: what was left out."""

    files: Mapping[str, bytes]
    commit: str = ""
    notes: tuple[str, ...] = ()


def read_folder(folder: Path, *, outputs: bool = False) -> Snapshot:
    """Regular files of a folder, without caches, environments, links, files of more than ``MAX_FILE_BYTES`` and names
    that are not UTF-8.

    Folders called ``build``, ``dist`` or like an environment are read if they are Python packages, or with ``outputs``.
    Raises PackageError if the folder cannot be read, holds no files or is larger than ``MAX_BYTES``.
    """
    files: dict[str, bytes] = {}
    total = 0
    try:
        for root, folders, names in os.walk(folder, onerror=_refuse):
            folders[:] = sorted(f for f in folders if not _is_made(Path(root, f), outputs))
            for name in sorted(names):
                path = Path(root, name)
                relative = path.relative_to(folder).as_posix()
                if path.is_symlink() or not path.is_file() or not _is_utf8(relative):
                    continue
                if path.stat().st_size > MAX_FILE_BYTES:
                    continue
                files[relative] = path.read_bytes()
                total += path.stat().st_size
                if total > MAX_BYTES:
                    raise PackageError(
                        f"{folder}: holds more than {MAX_BYTES >> 20} MiB; give the project's own folder"
                    )
    except OSError as error:
        raise PackageError(f"{folder}: cannot be read ({error})") from None
    if not files:
        raise PackageError(f"{folder}: holds no files")
    return Snapshot(files)


def _is_made(folder: Path, outputs: bool) -> bool:
    if folder.name in _SKIPPED or (folder / "pyvenv.cfg").exists():
        return True
    return folder.name in _OUTPUTS and not outputs and not (folder / "__init__.py").exists()


def _refuse(error: OSError) -> None:
    raise error


def _is_utf8(name: str) -> bool:
    """Return whether a file name, read with ``surrogateescape``, is UTF-8, as the names in a task must be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_repository(place: str, commit: str) -> Snapshot:
    """The files of one commit (empty: the newest of the default branch) of a local repository or a URL.

    Raises PackageError if git is missing, the repository cannot be reached, or there is no such commit.
    """
    if Path(place).is_dir():
        return _at_commit(Path(place), commit, place)
    with tempfile.TemporaryDirectory(prefix="woodshed-git-") as scratch:
        copy = Path(scratch) / "copy.git"
        _git(None, "clone", "--quiet", "--bare", "--no-tags", "--", place, str(copy), where=place)
        return _at_commit(copy, commit, place)


class ShallowError(PackageError):
    """A repository lacks the older part of its history."""


def write_bundle(place: str, commit: str, target: Path) -> bytes:
    """Write the history of ``commit`` into the file ``target``; return its bytes.

    Raises as ``read_repository``, and ShallowError.
    """
    with tempfile.TemporaryDirectory(prefix="woodshed-git-") as scratch:
        copy, bundle = Path(scratch) / "copy.git", Path(scratch) / "history.bundle"
        _git(None, "clone", "--quiet", "--bare", "--no-tags", "--", place, str(copy), where=place)
        if _git(copy, "rev-parse", "--is-shallow-repository", where=place).strip() == b"true":
            raise ShallowError(f"{place}: is a shallow clone; complete its history with `git fetch --unshallow`")
        _git(copy, "update-ref", _HISTORY, commit, where=place)
        _git(copy, "bundle", "create", "--quiet", str(bundle), _HISTORY, where=place)
        if bundle.stat().st_size > MAX_BYTES:
            raise PackageError(f"{place}: its history takes more than {MAX_BYTES >> 20} MiB; leave --kind replay away")
        data = bundle.read_bytes()
    write_whole(target, data)
    return data


class Objects:
    """The commits of a bundle, in a temporary repository; ``close`` it. Raises PackageError for a damaged bundle."""

    def __init__(self, bundle: Path) -> None:
        self.where = bundle.name
        self._scratch = tempfile.TemporaryDirectory(prefix="woodshed-git-")
        self.folder = Path(self._scratch.name) / "copy.git"
        try:
            with bundle.open("rb") as file:
                form = "sha256" if b"@object-format=sha256\n" in file.read(256) else "sha1"
            init = ("--quiet", "--bare", f"--object-format={form}", str(self.folder))
            _git(None, "init", *init, where=self.where)
            _git(self.folder, "fetch", "--quiet", str(bundle.absolute()), f"{_HISTORY}:{_HISTORY}", where=self.where)
        except PackageError:
            self.close()
            raise

    def log(self, commit: str, most: int = 2000, *, first_parent: bool = False) -> list[Commit]:
        """The newest ``most`` commits up to ``commit``, newest first; ``first_parent``: with merges as one change."""
        form = LOG_FIRST_PARENT if first_parent else LOG
        return parse_log(_git(self.folder, *form, f"--max-count={most}", commit, "--", where=self.where))

    def roots(self, commit: str) -> list[str]:
        """The commits without parents that ``commit`` descends from, sorted: they identify a repository."""
        found = _git(self.folder, "rev-list", "--max-parents=0", commit, "--", where=self.where)
        return sorted(found.decode().split())

    def files(self, commit: str) -> dict[str, bytes]:
        """The files of a commit, as ``read_repository`` reads them."""
        return dict(_at_commit(self.folder, commit, self.where).files)

    def diff(self, before: str, after: str) -> str:
        """The unified diff of two commits without context, renames, drivers and filters."""
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--unified=0")
        prefixes = ("--src-prefix=a/", "--dst-prefix=b/")
        found = _git(self.folder, "diff", *options, *prefixes, before, after, "--", where=self.where)
        return found.decode("utf-8", "replace")

    def close(self) -> None:
        self._scratch.cleanup()


def _at_commit(folder: Path, commit: str, place: str) -> Snapshot:
    asked = commit or "HEAD"
    if asked.startswith("-"):
        raise PackageError(f"{place}: {asked!r} is not a commit")
    found = _git(folder, "rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}", where=place, may_fail=True)
    full = found.decode().strip()
    if not re.fullmatch(r"[0-9a-f]{40,64}", full):
        hint = "; give all of its digits, or a branch or tag that a clone has" if commit else "; commit something first"
        raise PackageError(f"{place}: no commit {asked!r}{hint}")
    entries: list[tuple[str, str]] = []
    total, skipped = 0, 0
    for line in _git(folder, "ls-tree", "-r", "-z", "--long", full, where=place).split(b"\0"):
        head, _, name = line.decode("utf-8", "surrogateescape").partition("\t")
        if not name:
            continue
        mode, kind, digest, size = head.split()
        regular = kind == "blob" and mode in ("100644", "100755")
        if not regular or int(size) > MAX_FILE_BYTES or not _is_utf8(name):
            skipped += 1  # not regular: links and submodules
            continue
        entries.append((digest, name))
        total += int(size)
    if total > MAX_BYTES:
        raise PackageError(f"{place}: the commit holds more than {MAX_BYTES >> 20} MiB")
    kinds = f"links, submodules, files over {MAX_FILE_BYTES >> 10} KiB or with names that are not UTF-8"
    notes = [f"{skipped} {kinds} are left out"] if skipped else []
    files = _blobs(folder, entries, place)
    if not commit and (folder / ".git").exists() and any(_differs(folder / n, data) for n, data in files.items()):
        notes.append(f"uncommitted changes are left out; the tasks are made from commit {full[:12]}")
    return Snapshot(files, full, tuple(notes))


def _differs(path: Path, data: bytes) -> bool:
    """Return whether a file differs from the commit, without ``git status``, which would run repository filters."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n") != data.replace(b"\r\n", b"\n")
    except OSError:
        return True


def _blobs(folder: Path, entries: list[tuple[str, str]], place: str) -> dict[str, bytes]:
    digests = [digest for digest, _ in entries]
    answer = _git(folder, "cat-file", "--batch", where=place, stdin="".join(f"{d}\n" for d in digests).encode())
    try:
        return dict(zip((name for _, name in entries), blobs_of(answer, digests), strict=True))
    except KeyError as error:
        name = next(name for digest, name in entries if digest == error.args[0])
        digest = error.args[0][:12]
        raise PackageError(f"{place}: object {digest} ({name}) is missing; is this a partial clone?") from None


def _git(folder: Path | None, *arguments: str, where: str, stdin: bytes = b"", may_fail: bool = False) -> bytes:
    at = ["-C", str(folder)] if folder else []
    command = git_command(*arguments, more=["-c", "safe.directory=*", *at])
    environment = git_environment()
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}  # git must never ask for a password
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=1800)
    except FileNotFoundError:
        raise PackageError(f"{where}: git is not installed; install it, or give a folder without .git") from None
    except subprocess.TimeoutExpired:
        raise PackageError(f"{where}: git {arguments[0]} took longer than half an hour") from None
    if done.returncode and not may_fail:
        said = done.stderr.decode("utf-8", "replace").strip().replace("\n", " ")[-300:]
        said = re.sub(r"(?<=//)[^/@\s]*@", "", said)
        advice = "; check the address and the network" if arguments[0] == "clone" else ""
        raise PackageError(f"{where}: git {arguments[0]} failed: {said}{advice}")
    return done.stdout


def pack(files: Mapping[str, bytes], top: str) -> bytes:
    """A ``.tar.gz`` of files below the folder ``top``, like a source distribution; equal files give equal bytes."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()
