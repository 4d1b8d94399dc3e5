"""Read instances of SWE-bench and SWE-smith from JSON lines, a JSON list or Parquet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from woodshed.record.task import TaskError

_SMITH = re.compile(r"swesmith/([\w.-]+?)__([\w.-]+)\.([0-9a-f]{7,40})")
_REPOSITORY = re.compile(r"([\w-][\w.-]*)/([\w-][\w.-]*)")
_TEXTS = ("instance_id", "repo", "patch", "problem_statement")


@dataclass(frozen=True)
class Instance:
    """One instance. ``owner``, ``name``: of the repository; ``commit``: all or the first of its hex digits; ``where``:
    file and row. The other fields are those of the dataset."""

    format: Literal["swebench", "swesmith"]
    id: str
    owner: str
    name: str
    commit: str
    patch: str
    test_patch: str
    statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    where: str

    @property
    def package(self) -> str:
        """Name of the package in its task."""
        return f"{self.owner}__{self.name}".lower()

    @property
    def slug(self) -> str:
        """Name of the task directory; another statement, patch or list of tests gives another name."""
        parts = (
            self.format,
            self.id,
            self.commit,
            self.patch,
            self.test_patch,
            self.statement,
            self.fail_to_pass,
            self.pass_to_pass,
        )
        digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.id).strip('-.')[:120]}-{digest}"


def read_instances(path: Path, only: Collection[str] = ()) -> list[Instance]:
    """The instances of a ``.jsonl``, ``.json`` or ``.parquet`` file, in order; with ``only``, just those ids.

    Raises TaskError, which names file, row and field, also if an id of ``only`` is missing or an id occurs twice.
    """
    found: dict[str, Instance] = {}
    for number, row in enumerate(_rows(path), 1):
        where = f"{path}: row {number}"
        if not isinstance(row, dict):
            raise TaskError(f"{where}: not an instance but {type(row).__name__}")
        if only and row.get("instance_id") not in only:
            continue
        instance = _instance(row, where)
        if instance.id in found:
            raise TaskError(f"{where}: instance_id {instance.id} is there twice; leave one out")
        found[instance.id] = instance
    if missing := sorted(set(only) - set(found)):
        raise TaskError(f"{path}: no instance {missing[0]!r}")
    if not found:
        raise TaskError(f"{path}: holds no instance")
    return list(found.values())


def _rows(path: Path) -> list[Any]:
    try:
        if path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return list(pq.read_table(path).to_pylist())
            except pa.ArrowException as error:
                raise TaskError(f"{path}: not readable as Parquet ({error})") from None
        if path.suffix == ".jsonl":
            return [_json(line, f"{path}:{n}") for n, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
        if path.suffix == ".json":
            rows = _json(_text(path), str(path))
            if isinstance(rows, list):
                return rows
            raise TaskError(f"{path}: must be a list of instances")
    except FileNotFoundError:
        raise TaskError(f"{path}: no such file") from None
    raise TaskError(f"{path}: instances are read from .jsonl, .json and .parquet files")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text ({error})") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{where}: not JSON ({error})") from None


def _instance(row: dict[str, Any], where: str) -> Instance:
    for key in _TEXTS:
        if not isinstance(row.get(key), str):
            raise TaskError(f"{where}: {key} must be text, got {str(row.get(key))[:60]!r}")
    if not row["instance_id"].strip("-. "):
        raise TaskError(f"{where}: instance_id is empty")
    fail, keep = (_ids(row, key, where) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    name, patch, statement = row["instance_id"], row["patch"], row["problem_statement"]
    if smith := _SMITH.fullmatch(row["repo"]):
        owner, repo, digits = smith.groups()
        return Instance(
            format="swesmith",
            id=name,
            owner=owner,
            name=repo,
            commit=digits,
            patch=patch,
            test_patch="",
            statement=statement,
            fail_to_pass=fail,
            pass_to_pass=keep,
            where=where,
        )
    repository, commit = _REPOSITORY.fullmatch(row["repo"]), row.get("base_commit")
    if repository is None:
        raise TaskError(
            f"{where}: repo {row['repo']!r}: neither OWNER/NAME (SWE-bench) nor swesmith/OWNER__NAME.COMMIT (SWE-smith)"
        )
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise TaskError(f"{where}: base_commit must be all digits of a commit, got {str(commit)[:60]!r}")
    if not isinstance(row.get("test_patch"), str):
        raise TaskError(f"{where}: test_patch must be text, got {str(row.get('test_patch'))[:60]!r}")
    owner, repo = repository.groups()
    return Instance(
        format="swebench",
        id=name,
        owner=owner,
        name=repo,
        commit=commit,
        patch=patch,
        test_patch=row["test_patch"],
        statement=statement,
        fail_to_pass=fail,
        pass_to_pass=keep,
        where=where,
    )


def _ids(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of test ids: JSON text in SWE-bench, a list in SWE-smith and many others."""
    value = row.get(key)
    if isinstance(value, str):
        value = _json(value, f"{where}: {key}")
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise TaskError(f"{where}: {key} must be a list of test ids, or one as JSON text")
    return tuple(dict.fromkeys(value))
