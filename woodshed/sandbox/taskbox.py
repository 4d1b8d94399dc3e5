"""The box of a task: its layers below, its workspace on top."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from woodshed.record.task import Task
from woodshed.sandbox.host.first_commit import first_commit

from .layers import LayerStore
from .protocol import BoxSpec, Egress, Limits

PRELOAD = ("json", "traceback", "importlib.util", "runpy")
"""What graders and tools import in every box; paid once in the process that boxes are cloned from."""

_FEW = 4 << 20
_NO_HISTORY = ("study", "install")
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
    """What to create for ``task``. Raises SandboxError where one of its layers is missing.

    A workspace of at most 4 MiB travels in the create call; a larger one becomes a layer of its own, so that boxes
    share it. A task with services has a loopback; ``services.create_box`` starts them.
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
        layers=tuple(stack), files=files or {}, workdir=workdir, env=_environment(task), limits=limits or _DEFAULT,
        egress=egress, preload=PRELOAD,
    )  # fmt: skip


def agent_box_spec(
    task: Task, layers: LayerStore, *, limits: Limits | None = None, egress: Egress | None = None
) -> BoxSpec:
    """``box_spec`` for an agent, who finds the workspace as a git repository of one commit (``first_commit.py``)."""
    return box_spec(task, layers, limits=limits, egress=egress, history=task.info.family not in _NO_HISTORY)


def _environment(task: Task) -> dict[str, str]:
    """Of an install, whose pip is configured by it; where tests decide, their runners say what is in force."""
    found = task.config.get("environment", {}).get("env", {})
    return dict(found) if task.info.grader == "install" else {}


def _stamp(task: Task) -> int:
    """Changes when a task directory is written again: its task.toml is always written last."""
    return (task.path / "task.toml").stat().st_mtime_ns


@lru_cache(maxsize=2048)
def _small_workspace(path: Path, workdir: str, stamp: int) -> dict[str, bytes] | None:
    """None for a larger one, which is not kept in memory."""
    files = {f"{workdir}/{name}": data for name, data in Task.load(path).workspace_files().items()}
    return files if sum(map(len, files.values())) <= _FEW else None


@lru_cache(maxsize=2048)
def _small_history(path: Path, workdir: str, stamp: int) -> dict[str, bytes]:
    """What ``.git`` holds, of a workspace that travels in the create call."""
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
