"""The task directories of a run, by family and split."""

from __future__ import annotations

from pathlib import Path

from woodshed.record.history import in_use
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task, TaskError
from woodshed.tasks.find import task_folders


def task_folder(run: RunDirectory, family: str, split: str) -> Path:
    return run.tasks(f"{family}-{split}")


def built_tasks(folder: str) -> tuple[list[Task], str]:
    """The tasks of a folder that ``woodshed tasks build`` made, by name, and what was left out: those that
    ``woodshed tasks renew`` took out of use. TaskError where one is damaged."""
    found, left = in_use(Task.load(path.absolute()) for path in task_folders([Path(folder)]))
    said = ", ".join(f"{count} {status}" for status, count in sorted(left.items()))
    return sorted(found, key=lambda task: task.name), f"{said} left out" if said else ""


def load_split(run: RunDirectory, family: str, split: str) -> list[Task]:
    """All tasks of a split by name; TaskError if there are none."""
    folder = task_folder(run, family, split)
    tasks = [Task.load(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    if not tasks:
        raise TaskError(f"{folder}: no tasks; the stage that makes them has not run")
    return tasks
