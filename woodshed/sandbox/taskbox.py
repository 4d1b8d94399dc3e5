"""The box of a task: its layers below, its workspace on top."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from woodshed.record.task import Task

from .layers import LayerStore
from .protocol import BoxSpec, Egress, Limits

PRELOAD = ("json", "traceback", "importlib.util", "runpy")
"""What graders and tools import in every box; paid once in the process that boxes are cloned from."""

_FEW = 4 << 20
_DEFAULT = Limits()


def box_spec(task: Task, layers: LayerStore, *, limits: Limits | None = None, egress: Egress | None = None) -> BoxSpec:
    """What to create for ``task``. Raises SandboxError where one of its layers is missing.

    A workspace of at most 4 MiB travels in the create call; a larger one becomes a layer of its own, so that boxes
    share it.
    """
    workdir = task.info.workdir
    stack = [layers.path(name) for name in task.info.layers]
    files = _small_workspace(task.path, workdir, _stamp(task))
    if files is None:
        stack.append(layers.path(_workspace_layer(task, layers)))
    return BoxSpec(
        layers=tuple(stack), files=files or {}, workdir=workdir, env=_environment(task), limits=limits or _DEFAULT,
        egress=egress, preload=PRELOAD,
    )  # fmt: skip


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


def _workspace_layer(task: Task, layers: LayerStore) -> str:
    return _built(task.path, task.info.workdir, _stamp(task), layers.root)


@lru_cache(maxsize=2048)
def _built(path: Path, workdir: str, stamp: int, root: Path) -> str:
    def fill(folder: Path) -> None:
        for name, data in Task.load(path).workspace_files().items():
            target = folder / workdir.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    return LayerStore(root).add("workspace", fill)
