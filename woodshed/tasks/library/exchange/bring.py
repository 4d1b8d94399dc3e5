"""Instances as task directories again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from woodshed.record.task import Task, TaskError, TaskInfo, save_task

from .export import INSTANCES
from .git import GitRepository, branch_name


def import_tasks(
    folder: Path, out: Path, progress: Callable[[int, int, str], None] = lambda *_: None
) -> tuple[list[Task], dict[str, str]]:
    """(tasks in ``out``, instance -> why it cannot be one) of a folder that ``export_tasks`` wrote.

    Instances of other datasets say nothing of their environment: ``build.py`` needs their repositories for that, and
    here they are left out.
    Raises TaskError where the file is missing or no JSON lines.
    """
    path = folder / INSTANCES
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise TaskError(f"{path}: no such file; give the folder that 'woodshed tasks export' wrote") from None
    tasks: list[Task] = []
    left_out: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            instance = json.loads(line)
            name = str(instance["instance_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f"{path}:{number}: not an instance ({error!r})") from None
        progress(number - 1, len(lines), name)
        if not isinstance(instance.get("woodshed"), dict):
            left_out[name] = (
                "has no 'woodshed' object: what its tests run in is not known here; give the file and --repositories"
            )
            continue
        try:
            tasks.append(_task(instance, folder / "repositories", out / branch_name(name)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TaskError(f"{path}:{number}: {name}: {error!r}") from None
    return tasks, left_out


def _task(instance: dict[str, Any], repositories: Path, folder: Path) -> Task:
    rest = instance["woodshed"]
    place = repositories / f"{branch_name(instance['repo'])}.git"
    if not (place / "HEAD").exists():
        raise TaskError(f"{place}: no such repository; it belongs beside {INSTANCES}")
    repository = GitRepository(place)
    start = repository.files(instance["base_commit"])
    goal = repository.patched(instance["base_commit"], instance["patch"])
    smith = "image_name" in instance
    broken, repaired = (goal, start) if smith else (start, goal)
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in rest["info"].items()}
    for name in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        ids = instance[name]
        fields[name.lower()] = tuple(json.loads(ids) if isinstance(ids, str) else ids)
    tests = {n: base64.b64decode(d) for n, d in rest["tests"].items()}
    tests |= {f"workspace/{n}": base64.b64decode(d) for n, d in rest["hidden"].items()}
    environment = {n: base64.b64decode(d) for n, d in rest.get("environment", {}).items()}
    return save_task(
        folder, name=rest["name"], instruction=instance["problem_statement"], info=TaskInfo(**fields),
        workspace=broken, tests=tests, solution={n: repaired[n] for n in rest["solution"]}, config=rest["config"],
        environment=environment,
    )  # fmt: skip
