"""Layout of a run directory. Only paths, and atomic reads and writes of small files."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import create_whole, write_whole


class DirectoryError(Exception):
    """A file of a run directory is damaged; the message names it and says what to do."""


@dataclass(frozen=True)
class RunDirectory:
    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.toml"

    @property
    def ledger(self) -> Path:
        return self.root / "state.sqlite"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    def chain(self, store: str) -> str:
        """Return the address of the weight chain, given ``weights.store`` of the recipe."""
        return store or str(self.weights)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def stage_checkpoints(self, stage: str) -> Path:
        """Return the folder of a supervised stage's checkpoints, which exists while the stage runs."""
        return self.checkpoints / stage

    @property
    def trainer_lock(self) -> Path:
        """File that is locked while the trainer computes."""
        return self.root / "server" / "trainer.lock"

    @property
    def batches(self) -> Path:
        return self.root / "batches"

    @property
    def demonstrations(self) -> Path:
        return self.root / "demonstrations"

    def examples(self, *, verified: bool = False) -> Path:
        """Return the file with the token sequences of the demonstrations, all of them or only the verified ones."""
        return self.demonstrations / ("verified.npz" if verified else "examples.npz")

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def egress_log(self) -> Path:
        """Log of the network requests of boxes, if the recipe allows any."""
        return self.root / "egress.jsonl"

    @property
    def placed_boxes(self) -> Path:
        """Folder with the addresses of the box servers that the run itself starts, and their key."""
        return self.root / "boxes"

    @property
    def judge_log(self) -> Path:
        """Log of the judge's questions and answers, if the recipe has a judge."""
        return self.root / "judge.jsonl"

    @property
    def reader_log(self) -> Path:
        """Log of the questions to the model of ``rl.reader`` and its answers, if the recipe has one."""
        return self.root / "reader.jsonl"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    def tasks(self, split: str) -> Path:
        return self.root / "tasks" / split

    def policy(self, stage: str) -> Path:
        """Return the Hugging Face directory of the policy after ``stage`` (``pretrain``, ``sft``, ``final``)."""
        return self.root / "policy" / stage

    def log(self, program: str) -> Path:
        return self.root / "logs" / f"{program}.log"

    def stage_metrics(self, name: str) -> Path:
        return self.root / "metrics" / f"{name}.jsonl"

    def stage_result(self, stage: str) -> dict[str, Any] | None:
        """Return the result of a finished stage, or None. Raises DirectoryError."""
        return _read_object(self.root / "stages" / f"{stage}.json")

    def read_result_of(self, stage: str) -> dict[str, Any]:
        """Return the result that the programs of a stage wrote, before the stage counts as finished; {} if there is
        none. Raises DirectoryError."""
        return _read_object(self.root / "results" / f"{stage}.json") or {}

    def write_result_of(self, stage: str, result: dict[str, Any]) -> None:
        write_json(self.root / "results" / f"{stage}.json", result)

    def finish_stage(self, stage: str, result: dict[str, Any]) -> None:
        write_json(self.root / "stages" / f"{stage}.json", result)

    def read_clock(self) -> dict[str, float]:
        """Return the seconds that unfinished stages have taken so far, including the time before a kill."""
        return self.read_progress("clock")

    def write_clock(self, seconds: dict[str, float]) -> None:
        write_json(self.root / "progress" / "clock.json", seconds)

    def read_progress(self, stage: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.root / "progress" / f"{stage}.json").read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def write_progress(self, stage: str, done: float, total: float, note: str = "") -> None:
        value = {"done": done, "total": total, "note": note}
        write_whole(self.root / "progress" / f"{stage}.json", json.dumps(value))  # not worth waiting for the disk


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        value = f"not JSON: {error}"
    if not isinstance(value, dict):
        found = value if isinstance(value, str) else f"a JSON {type(value).__name__}, not an object"
        raise DirectoryError(f"{path} is damaged ({found}); delete it and run again: its stage is then repeated")
    return value


def key_file(path: Path, key: str = "") -> Path:
    """Create a file that only its owner may read, with ``key`` or a random one, unless it exists; return its path."""
    if not path.exists():
        create_whole(path, key or secrets.token_urlsafe(32), mode=0o600)
    return path


def write_text(path: Path, text: str) -> None:
    """Write a file atomically and flush it to disk before returning."""
    write_whole(path, text, fsync=True)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1))
