"""A version history for an agent's workspace: one commit of what it is given, and nothing else.

Agents look at their own changes with git, and some refuse to work without a repository. A history of the package would
hold the answer (SWE-bench's did), so none of its objects is used: the commit is made of the given files alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from woodshed.record.walk import all_below
from woodshed.sandbox.protocol import SandboxError

_BRANCH = "refs/heads/main"
_NOBODY = "box <box@localhost> 946684800 +0000"
"""Author and date of the commit, which is the same for the same files."""

_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = false
[user]
\tname = box
\temail = box@localhost
"""
_OPTIONS = (
    "core.protectNTFS=false", "core.protectHFS=false", "core.logAllRefUpdates=false", "fastimport.unpackLimit=1",
    "index.version=2",
)  # fmt: skip


def first_commit(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What ``.git`` holds after ``files`` (paths relative to it) were committed, by path, ``.git/`` included.

    Nothing where they bring a ``.git`` of their own, or this machine has no git. Raises SandboxError if git fails, or
    the disk is full.
    """
    owned = any(part.lower() == ".git" for name in files for part in PurePosixPath(name).parts)
    if not files or owned or shutil.which("git") is None:
        return {}
    try:
        with tempfile.TemporaryDirectory(prefix="woodshed-git-") as folder:
            return _committed(folder, files)
    except OSError as error:
        raise SandboxError(f"a workspace could not be committed: {error}") from error


def _committed(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    _git(folder, "init", "--quiet", "--bare", "--template=", folder)
    Path(folder, "HEAD").write_text(f"ref: {_BRANCH}\n")
    Path(folder, "config").write_text(_CONFIG)
    _git(folder, "fast-import", "--quiet", stream=_stream(files))
    _git(folder, "read-tree", _BRANCH)
    kept = [path for path in all_below(Path(folder)) if path.is_file()]
    return {f".git/{path.relative_to(folder)}": path.read_bytes() for path in kept}


def _stream(files: Mapping[str, bytes]) -> bytes:
    parts = [f"commit {_BRANCH}\ncommitter {_NOBODY}\ndata 6\nGiven\n\n".encode()]
    for name in sorted(files):
        path = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        parts += [b'M 100644 inline "', os.fsencode(path), f'"\ndata {len(files[name])}\n'.encode(), files[name], b"\n"]
    return b"".join(parts)


def _git(folder: str, *arguments: str, stream: bytes = b"") -> None:
    """The machine's git, which reads no configuration but that of ``folder``."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LC_ALL": "C"}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    options = [word for option in _OPTIONS for word in ("-c", option)]
    command = ["git", f"--git-dir={folder}", *options, *arguments]
    done = subprocess.run(command, input=stream, env=environment, cwd=folder, capture_output=True)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()[-500:]
        raise SandboxError(f"git {arguments[0]} could not commit a workspace: {why}")
