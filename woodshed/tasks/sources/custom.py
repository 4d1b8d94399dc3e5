"""Task sources of a user's own, named by reference (``"my_module:my_source"``) in a recipe or on the command line."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from woodshed.record.fault import HostFault, is_shortage
from woodshed.record.settings import load_reference
from woodshed.record.task import Task, TaskError

_REFERENCE = re.compile(r"(?!(?:pypi|npm):)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class TaskSource(Protocol):
    """Write ``count`` task directories directly below ``folder`` (``save_task``) and return or yield their tasks.

    ``folder`` exists and is empty. Every task has ``split`` ("train", "dev" or "heldout") as ``info.split``, and a name
    that no other task of the source has, whatever its split. The same ``split``, ``count`` and ``seed`` should give the
    same tasks: a build that was interrupted calls the source again.
    """

    def __call__(self, folder: Path, split: str, count: int, seed: int) -> Iterable[Task]: ...


def is_source_reference(text: str) -> bool:
    """Return whether a source on the command line is a reference, and not a path or a package of an index."""
    return _REFERENCE.fullmatch(text) is not None and not Path(text).exists()


def load_source(reference: str) -> TaskSource:
    """Load the source of a reference ``"module:function"``. Raises ValueError that says what is wrong."""
    source = load_reference(reference, "task source")
    if not callable(source):
        raise ValueError(f"task source: {reference!r} is not a function of (folder, split, count, seed)")
    try:
        inspect.signature(source).bind(Path(), "train", 1, 0)
    except (TypeError, ValueError) as error:  # ValueError: a function written in C, say
        raise ValueError(f"task source: {reference!r} must take (folder, split, count, seed): {error}") from None
    return source


def draw_tasks(reference: str, folder: Path, *, split: str, count: int, seed: int) -> Iterator[Task]:
    """Empty ``folder``, call the source and yield each task that it wrote, as it is on disk.

    Raises TaskError, naming source and task, if the source raises or breaks the contract of ``TaskSource``.
    """
    source = load_source(reference)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names: dict[str, str] = {}
    try:
        for given in source(folder, split, count, seed):
            task = _read(reference, given, folder, split)
            dotted = task.name.replace("/", ".")  # so evaluations name the samples of a task
            if dotted in names:
                raise TaskError(
                    f"{reference}: two of its {split} tasks are called {names[dotted]} and {task.name}; "
                    "names must differ in more than '/' and '.'"
                )
            names[dotted] = task.name
            yield task
    except (TaskError, HostFault):
        raise
    except Exception as error:  # whatever a user's function raises
        if isinstance(error, OSError) and is_shortage(error):
            raise
        raise TaskError(f"{reference} ({split}): {type(error).__name__}: {error}") from error
    if len(names) != count:
        raise TaskError(f"{reference} wrote {len(names)} {split} tasks, and {count} were asked for")


def _read(reference: str, given: object, folder: Path, split: str) -> Task:
    if not isinstance(given, Task):
        raise TaskError(f"{reference} gave {given!r}; it must return or yield tasks (woodshed.Task)")
    if given.path.resolve().parent != folder.resolve():
        raise TaskError(f"{reference} wrote {given.path}; task directories lie directly below its folder, {folder}")
    task = Task.load(folder / given.path.name)
    if task.info.split != split:
        raise TaskError(f"{reference}: {task.path}: split is {task.info.split!r}, and {split!r} was asked for")
    return task
