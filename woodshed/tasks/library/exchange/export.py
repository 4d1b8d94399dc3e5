"""Export task directories as instances (JSON lines and commits in bare repositories), and import them again."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from woodshed.record.atomic import write_whole
from woodshed.record.task import Task, TaskError, TaskInfo, save_task
from woodshed.tasks.change import source_of

from .git import GitRepository, branch_name

Format = Literal["swebench", "swesmith"]
FORMATS: tuple[Format, ...] = ("swebench", "swesmith")
INSTANCES = "instances.jsonl"
_HIDDEN = "workspace/"


@dataclass
class Exported:
    """Result of an export. ``path``: of the JSON lines; ``left_out``: task -> why it cannot be an instance."""

    path: Path
    instances: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def export_tasks(
    tasks: Iterable[Task],
    format: Format,
    out: Path,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Exported:
    """Write ``out/instances.jsonl`` and ``out/repositories/NAME.git``. Raises TaskError if git cannot be used.

    A SWE-bench instance starts from the broken workspace and its ``patch`` repairs it; a SWE-smith instance starts
    from the repaired one and its ``patch`` breaks it. Everything else is in the field ``woodshed``.
    """
    found = Exported(out / INSTANCES)
    every = list(tasks)
    lines = []
    for done, task in enumerate(every):
        progress(done, len(every), task.name)
        if why := _impossible(task):
            found.left_out[task.name] = why
            continue
        lines.append(json.dumps(_instance(task, format, out / "repositories"), default=str))
        found.instances.append(branch_name(task.name))
    write_whole(found.path, "".join(line + "\n" for line in lines))
    return found


def _impossible(task: Task) -> str:
    if task.info.grader not in ("pytest", "node"):
        return f"graded by {task.info.grader!r}, not by tests with ids"
    if not task.info.fail_to_pass:
        return "no test that fails and has to pass"
    if not task.solution_files():
        return "no solution/workspace"
    names = (*task.workspace_names(), *task.solution_files(), *task.test_files())
    if held := next((name for name in names if ".git" in name.lower().split("/")), None):
        return f"git holds no path like {held}"
    return ""


def _instance(task: Task, format: Format, repositories: Path) -> dict[str, Any]:
    broken = task.workspace_files()
    repaired = {**broken, **task.solution_files()}
    hidden = {n.removeprefix(_HIDDEN): d for n, d in task.test_files().items() if n.startswith(_HIDDEN)}
    name, info = branch_name(task.name), task.info
    start, goal = (broken, repaired) if format == "swebench" else (repaired, broken)
    repository = repositories / f"{branch_name(source_of(task))}.git"
    # Patches are made in a temporary repository: the published one must not hold the answer.
    with tempfile.TemporaryDirectory(prefix="woodshed-exchange-") as scratch:
        work = GitRepository(Path(scratch) / "work.git")
        first = work.commit("start", start, name)
        patch = work.diff(first, work.commit("goal", goal, name))
        tests = work.diff(first, work.commit("tests", {**start, **hidden}, name))
    base = GitRepository(repository).commit(name, start, name)
    common = {
        "instance_id": name,
        "repo": source_of(task),
        "base_commit": base,
        "patch": patch,
        "problem_statement": task.instruction,
        "created_at": "",
        "woodshed": _rest(task, hidden),
    }
    if format == "swesmith":
        return {
            **common,
            "FAIL_TO_PASS": list(info.fail_to_pass),
            "PASS_TO_PASS": list(info.pass_to_pass),
            "image_name": "",
        }
    return {
        **common,
        "test_patch": tests,
        "hints_text": "",
        "version": info.provenance.get("version", ""),
        "environment_setup_commit": base,
        "FAIL_TO_PASS": json.dumps(info.fail_to_pass),
        "PASS_TO_PASS": json.dumps(info.pass_to_pass),
    }


def _rest(task: Task, hidden: dict[str, bytes]) -> dict[str, Any]:
    """The field ``woodshed``: everything that the task needs and the format does not hold."""
    default, info = TaskInfo(), task.info
    changed = {k: v for k, v in vars(info).items() if v != getattr(default, k)}
    kept = {k: v for k, v in changed.items() if k not in ("fail_to_pass", "pass_to_pass")}
    metadata = {k: v for k, v in task.config.get("metadata", {}).items() if k != "woodshed"}
    return {
        "name": task.name,
        "info": {k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()},
        "config": {**task.config, "metadata": metadata},
        "solution": sorted(task.solution_files()),
        "tests": {n: base64.b64encode(d).decode() for n, d in task.test_files().items() if not n.startswith(_HIDDEN)},
        "environment": {n: base64.b64encode(d).decode() for n, d in task.environment_files().items()},
        "hidden": {n: base64.b64encode(d).decode() for n, d in sorted(hidden.items())},
    }


def load_all(folders: Iterable[Path]) -> list[Task]:
    """Load the tasks of these folders. Raises TaskError, also if two have the same branch name."""
    tasks = [Task.load(folder) for folder in folders]
    seen: dict[str, Path] = {}
    for task in tasks:
        other = seen.setdefault(branch_name(task.name), task.path)
        if other != task.path:
            raise TaskError(f"{task.path} and {other} have the same name {task.name!r}; rename one in its task.toml")
    return tasks


def import_tasks(
    folder: Path, out: Path, progress: Callable[[int, int, str], None] = lambda *_: None
) -> tuple[list[Task], dict[str, str]]:
    """Return (tasks in ``out``, instance -> why it became none) of a folder that ``export_tasks`` wrote.

    Instances of other datasets do not describe their environment and are left out; ``build.py`` imports them with their
    repositories. Raises TaskError if the file is missing or does not hold JSON lines.
    """
    path = folder / INSTANCES
    try:
        lines = [line for line in path.read_text("utf-8").split("\n") if line.strip()]
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
                "has no 'woodshed' object, so its environment is not known; give the file and --repositories"
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
    # A task of an earlier import may have had other files, and is no task until it is whole again.
    (folder / "task.toml").unlink(missing_ok=True)
    for part in ("environment", "tests", "solution"):
        shutil.rmtree(folder / part, ignore_errors=True)
    return save_task(
        folder,
        name=rest["name"],
        instruction=instance["problem_statement"],
        info=TaskInfo(**fields),
        workspace=broken,
        tests=tests,
        solution={n: repaired[n] for n in rest["solution"]},
        config=rest["config"],
        environment=environment,
    )
