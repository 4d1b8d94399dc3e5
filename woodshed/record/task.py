"""A task: a Harbor 1.4 task directory plus a ``[metadata.woodshed]`` table.

Harbor's own fields are kept verbatim (``config``); what Woodshed adds is typed (``TaskInfo``). Layout::

    task.toml  instruction.md  environment/workspace/...  tests/...  solution/...
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from .atomic import write_whole
from .fault import HostFault, is_shortage
from .toml import to_toml
from .walk import all_below

HISTORY = "history.jsonl"
"""File with results of policies on a task (``record/history.py``); in the directory, but not part of the task."""

WITHHELD = "withheld"
"""Value of ``reference`` in the provenance if the authors of a benchmark withhold a task's solution."""


TASK_LABELS = ("family", "kind", "package")
"""Names that ``Task.labels`` may have."""


class TaskError(Exception):
    """A task directory is not valid; the message names the file and the field."""


@dataclass(frozen=True)
class TaskInfo:
    """The ``[metadata.woodshed]`` table.

    ``family``: what generated it (``synthetic``, ``package``, ...). ``split``: ``train``, ``sft`` or ``heldout``.
    ``key``: the unit that splits keep apart (a semantic key, or package + function). ``grader``: ``cases`` (values
    checked out of process), ``pytest``, ``node`` (tests run by mocha, tape or node:test) or ``install`` (a recipe is
    replayed). ``submission``: globs, relative to the workdir, of the files that cross into grading.
    ``fail_to_pass``/``pass_to_pass``: required test ids. ``protected``: globs of files that the agent may read, and
    whose changes are ignored. ``test_command``: command of the ``run_tests`` tool, empty for the grader's own runner.
    ``layers``: names of content-addressed layers (dependencies) below the workspace. ``kind``: the change that made the
    task (``compare``, ``delete_function``, ...). ``provenance``: origin of the code (name, version, sha256, licence);
    with ``reference = "withheld"`` there is no solution, and the split must be ``heldout``. ``timeout_sec``: per test
    run. ``quality``: measurements of the task (``mutation_score``: share of mutants of the solution that the required
    tests detect, and ``mutants``: their number). ``own_values``: changed function -> the values on other inputs that
    only its fix gives (``grading/own_values.py``), for functions whose values are few beside those of others.
    ``start``: shell script that starts the services that tests need in every box, and ends once they answer
    (``sandbox/services.py``). ``interruption``: what the user says once the agent has edited a file, or is about to
    stop; only the built-in agent can be told."""

    family: str = "harbor"
    split: str = "train"
    key: str = ""
    grader: str = "pytest"
    kind: str = ""
    workdir: str = "/workspace"
    submission: tuple[str, ...] = ("**/*.py",)
    protected: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    test_command: str = ""
    layers: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)
    timeout_sec: float = 60.0
    quality: dict[str, str] = field(default_factory=dict)
    own_values: dict[str, str] = field(default_factory=dict)
    start: str = ""
    interruption: str = ""


@dataclass(frozen=True)
class Task:
    """One task on disk. ``name`` is Harbor's ``org/name``; ``config`` is the whole parsed ``task.toml``."""

    path: Path
    name: str
    instruction: str
    info: TaskInfo
    config: dict[str, Any]

    @staticmethod
    def load(path: Path | str) -> Task:
        path = Path(path)
        toml_path = path / "task.toml"
        try:
            config = tomllib.loads(toml_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TaskError(f"{path}: no task.toml; this is not a Harbor task directory") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TaskError(f"{toml_path}: {error}") from None
        for table in ("task", "metadata", "agent", "verifier", "environment"):
            if not isinstance(config.get(table, {}), dict):
                raise TaskError(f"{toml_path}: {table} must be a table, got {config[table]!r}")
        env = config.get("environment", {}).get("env", {})
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise TaskError(f"{toml_path}: [environment] env must be a table of strings, got {env!r}")
        name = config.get("task", {}).get("name")
        if not isinstance(name, str) or not name:
            raise TaskError(f'{toml_path}: [task] name is missing; write name = "org/name"')
        try:
            instruction = (path / "instruction.md").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TaskError(f"{path}: no instruction.md") from None
        except UnicodeDecodeError as error:
            raise TaskError(f"{path}/instruction.md: not UTF-8 text ({error})") from None
        return Task(path, name, instruction, _info(config, toml_path), config)

    @property
    def workspace(self) -> Path:
        """Folder with the files that the agent starts from."""
        return self.path / "environment" / "workspace"

    def workspace_files(self) -> dict[str, bytes]:
        return _files(self.workspace)

    def workspace_names(self) -> list[str]:
        """Return the paths of the workspace's files, without reading them."""
        return [path.relative_to(self.workspace).as_posix() for path in _plain_files(self.workspace)]

    def test_files(self) -> dict[str, bytes]:
        return _files(self.path / "tests")

    def solution_files(self) -> dict[str, bytes]:
        """Return the reference solution as files relative to the workdir (``solution/workspace/...``)."""
        return _files(self.path / "solution" / "workspace")

    def environment_files(self) -> dict[str, bytes]:
        """Return the files of ``environment/`` except the workspace, from which other Harbor tools build the box."""
        found = _files(self.path / "environment")
        return {name: data for name, data in found.items() if not name.startswith("workspace/")}

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the rollouts of this task in RL: what is known of it before they run, without empty values."""
        values = (self.info.family, self.info.kind, self.info.provenance.get("package", ""))
        return {name: value for name, value in zip(TASK_LABELS, values, strict=True) if value}

    @property
    def withheld(self) -> bool:
        """True if the authors withhold the solution, so that the task is only for evaluation (``Task.load`` requires
        the split ``heldout``)."""
        return self.info.provenance.get("reference") == WITHHELD and not self.solution_files()

    @cached_property
    def digest(self) -> str:
        """sha256 over path and content of every file of the directory, except its history."""
        digest = hashlib.sha256()
        for name, data in _files(self.path).items():
            if name == HISTORY:
                continue
            digest.update(f"{len(name)}:{name}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()


def save_task(
    path: Path,
    *,
    name: str,
    instruction: str,
    info: TaskInfo,
    workspace: dict[str, bytes],
    tests: dict[str, bytes],
    solution: dict[str, bytes],
    config: dict[str, Any] | None = None,
    environment: dict[str, bytes] | None = None,
) -> Task:
    """Write a task directory; ``tests`` must contain ``test.sh``. Overwrites files, leaves no partial task.toml.

    ``solution`` is relative to the workdir; a ``solve.sh`` that copies it is written for other Harbor tools, unless the
    provenance says that the solution is withheld. ``environment``: files beside the workspace; without a ``Dockerfile``
    among them one is written that provides only an interpreter.
    """
    if "test.sh" not in tests:
        raise TaskError(f"{path}: tests need a test.sh")
    merged = {
        "schema_version": "1.4",
        "artifacts": [info.workdir],  # the part of the agent's work that a separate verifier sees
        "task": {"name": name},
        "agent": {"timeout_sec": 600.0},
        "verifier": {"timeout_sec": max(60.0, 4 * info.timeout_sec), "environment_mode": "separate"},
        "environment": {"network_mode": "no-network", "workdir": info.workdir},
        **(config or {}),
    }
    merged["metadata"] = {**merged.get("metadata", {}), "woodshed": _info_table(info)}
    _write(path / "environment" / "workspace", workspace)
    _write(path / "environment", environment or {})
    if "Dockerfile" not in _names(path / "environment"):
        image = "node:20-slim" if info.grader == "node" else "python:3.11-slim"
        dockerfile = f"FROM {image}\nWORKDIR {info.workdir}\nCOPY workspace {info.workdir}\n"
        (path / "environment").mkdir(parents=True, exist_ok=True)
        (path / "environment" / "Dockerfile").write_text(dockerfile)
    _write(path / "tests", tests)
    if solution or info.provenance.get("reference") != WITHHELD:
        _write(path / "solution" / "workspace", solution)
        (path / "solution").mkdir(parents=True, exist_ok=True)
        solve = f'#!/bin/sh\ncp -r "$(dirname "$0")/workspace/." {info.workdir}/\n'
        (path / "solution" / "solve.sh").write_text(solve)
    (path / "instruction.md").write_text(instruction, encoding="utf-8")
    write_whole(path / "task.toml", to_toml(merged))
    return Task.load(path)


def _info(config: dict[str, Any], toml_path: Path) -> TaskInfo:
    table = config.get("metadata", {}).get("woodshed", {})
    if not isinstance(table, dict):
        raise TaskError(f"{toml_path}: [metadata] woodshed must be a table, got {table!r}")
    known = {f.name: f for f in fields(TaskInfo)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise TaskError(f"{toml_path}: [metadata.woodshed] has an unknown field {key!r}; known: {sorted(known)}")
        default = getattr(TaskInfo(), key)
        if isinstance(default, tuple):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise TaskError(f"{toml_path}: [metadata.woodshed] {key} must be a list of strings")
            values[key] = tuple(value)
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            values[key] = float(value)
        elif not isinstance(value, type(default)):
            expected = type(default).__name__
            raise TaskError(f"{toml_path}: [metadata.woodshed] {key} must be of type {expected}, got {value!r}")
        elif isinstance(value, dict) and not all(isinstance(v, str) for v in value.values()):
            raise TaskError(f"{toml_path}: [metadata.woodshed.{key}] must hold strings only")
        else:
            values[key] = value
    info = TaskInfo(**values)
    if info.provenance.get("reference") == WITHHELD and info.split != "heldout":
        raise TaskError(
            f'{toml_path}: [metadata.woodshed] split is {info.split!r}, but provenance says reference = "{WITHHELD}": '
            'such a task is only for evaluation; write split = "heldout"'
        )
    return info


def _info_table(info: TaskInfo) -> dict[str, Any]:
    table = {f.name: getattr(info, f.name) for f in fields(TaskInfo)}
    table["timeout_sec"] = float(info.timeout_sec)  # 60 and 60.0 are the same task and must give the same file
    optional = ("quality", "own_values", "start", "interruption")
    return {k: list(v) if isinstance(v, tuple) else v for k, v in table.items() if k not in optional or v}


def _names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def _files(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder. Raises TaskError if one cannot be read, HostFault if the machine lacks a resource
    that reading needs."""
    paths = _plain_files(folder)
    try:
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    except OSError as error:  # during grading an OSError would be mistaken for an error of the box
        raise _unreadable(folder, error) from error


def _plain_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    try:
        paths = [path for path in all_below(folder) if path.is_file() and not path.is_symlink()]
    except OSError as error:
        raise _unreadable(folder, error) from error
    for path in paths:
        try:
            path.relative_to(folder).as_posix().encode()
        except UnicodeEncodeError:
            raise TaskError(f"{folder}: the name of the file {path.name!a} is not UTF-8; rename it") from None
    return paths


def _unreadable(folder: Path, error: OSError) -> Exception:
    if is_shortage(error):
        return HostFault(f"{folder}: cannot be read now: {error}")
    return TaskError(f"{folder}: cannot be read: {error}")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        target = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise TaskError(f"{folder}: refusing to write outside the task: {name!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
