"""Specifications of task boxes: the task's layers, its workspace on top, and for agents a git history of one commit.

Agents look at their own changes with git, and some refuse to work without a repository. The package's real history
would contain the answer (SWE-bench's did), so the commit is made from the given files alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from woodshed.record.task import Task
from woodshed.record.walk import all_below

from .layers import LayerStore
from .protocol import BoxSpec, Egress, Limits, SandboxError

_BRANCH = "refs/heads/main"
_NOBODY = "box <box@localhost> 946684800 +0000"
"""Author and date of the commit; fixed, so that equal files give an equal commit."""

_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = false
[user]
\tname = box
\temail = box@localhost
"""
_OPTIONS = (
    "core.protectNTFS=false",
    "core.protectHFS=false",
    "core.logAllRefUpdates=false",
    "fastimport.unpackLimit=1",
    "index.version=2",
)


def first_commit(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Commit ``files`` (paths relative to the workspace); return the files of ``.git``, with paths below ``.git/``.

    Returns nothing if the files bring a ``.git`` of their own, or if this machine has no git. Raises SandboxError if
    git fails or the disk is full.
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
    """Run this machine's git with only the configuration of ``folder``. Raises SandboxError."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LC_ALL": "C"}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    options = [word for option in _OPTIONS for word in ("-c", option)]
    command = ["git", f"--git-dir={folder}", *options, *arguments]
    done = subprocess.run(command, input=stream, env=environment, cwd=folder, capture_output=True)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()[-500:]
        raise SandboxError(f"git {arguments[0]} could not commit a workspace: {why}")


PRELOAD = ("json", "traceback", "importlib.util", "runpy")
"""Modules that graders and tools import in every box; imported once, in the process that boxes are cloned from."""

_SMALL_BYTES = 4 << 20
_NO_HISTORY = ("synthetic", "install")
"""Families whose workspaces are never a git repository: made by the thousands for tiny policies, or bare on purpose."""

_DEFAULT = Limits()


def box_spec(
    task: Task,
    layers: LayerStore,
    *,
    limits: Limits | None = None,
    egress: Egress | None = None,
    history: bool = False,
) -> BoxSpec:
    """Return the specification of a box for ``task``. Raises SandboxError if one of its layers is missing.

    A workspace of at most 4 MiB is sent with the create call; a larger one becomes a layer of its own that boxes
    share. A task with services gets a loopback device; ``services.create_box`` starts the services.
    """
    workdir = task.info.workdir
    stack = [layers.path(name) for name in task.info.layers]
    files = _small_workspace(task.path, workdir, _stamp(task))
    if files is None:
        stack.append(layers.path(_built(task.path, workdir, _stamp(task), history, layers.root)))
    elif history:
        files = files | _small_history(task.path, workdir, _stamp(task))
    if egress is None and task.info.start:
        egress = Egress()
    return BoxSpec(
        layers=tuple(stack),
        files=files or {},
        workdir=workdir,
        env=_environment(task),
        limits=limits or _DEFAULT,
        egress=egress,
        preload=PRELOAD,
    )


def agent_box_spec(
    task: Task, layers: LayerStore, *, limits: Limits | None = None, egress: Egress | None = None
) -> BoxSpec:
    """Return ``box_spec`` for an agent: its workspace is a git repository of one commit (``first_commit``)."""
    return box_spec(task, layers, limits=limits, egress=egress, history=task.info.family not in _NO_HISTORY)


def _environment(task: Task) -> dict[str, str]:
    """Return the task's environment variables, which configure pip; only install tasks have any."""
    found = task.config.get("environment", {}).get("env", {})
    return dict(found) if task.info.grader == "install" else {}


def _stamp(task: Task) -> int:
    """Return the time stamp of task.toml. It changes when a task directory is rewritten: that file is written last."""
    return (task.path / "task.toml").stat().st_mtime_ns


@lru_cache(maxsize=2048)
def _small_workspace(path: Path, workdir: str, stamp: int) -> dict[str, bytes] | None:
    """Return the files of a workspace of at most 4 MiB; None for a larger one, which is not kept in memory."""
    files = {f"{workdir}/{name}": data for name, data in Task.load(path).workspace_files().items()}
    return files if sum(map(len, files.values())) <= _SMALL_BYTES else None


@lru_cache(maxsize=2048)
def _small_history(path: Path, workdir: str, stamp: int) -> dict[str, bytes]:
    """Return the files of ``.git`` for a workspace that is sent with the create call."""
    commit = first_commit(Task.load(path).workspace_files())
    return {f"{workdir}/{name}": data for name, data in commit.items()}


@lru_cache(maxsize=2048)
def _built(path: Path, workdir: str, stamp: int, history: bool, root: Path) -> str:
    def fill(folder: Path) -> None:
        files = Task.load(path).workspace_files()
        for name, data in (files | first_commit(files) if history else files).items():
            target = folder / workdir.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    return LayerStore(root).add("workspace", fill)
