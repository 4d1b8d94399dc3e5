"""The settings of an evaluation, and the folder that holds exactly one evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.evaluate.cheating import scored
from woodshed.evaluate.suites.base import Suite
from woodshed.evaluate.sweep import draw_by_digest
from woodshed.record.atomic import locked
from woodshed.record.run_directory import write_json
from woodshed.record.task import Task
from woodshed.stages.failures import disk_problem

from .policies import Contestant, EvaluationError

_FORMAT = 1


@dataclass(frozen=True)
class Wishes:
    """Options of the command line. ``development``: share of the tasks ('0.2') or a suite, needed if there are several
    ``temperatures``. ``limit``: number of tasks of each suite, 0 for all. ``max_tokens``: budget of tokens for the
    whole evaluation, ``max_minutes``: budget of time for this start of the command; None: no budget. ``opened``: hosts
    that the boxes of a second arm of every policy can reach."""

    out: Path
    policies: tuple[str, ...]
    suites: tuple[str, ...]
    samples: int = 1
    temperatures: tuple[float, ...] = (1.0,)
    development: str = ""
    limit: int = 0
    split: str = "heldout"
    agents: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    jobs: int = 4
    seed: int = 0
    key_env: str = ""
    prices: tuple[str, ...] = ()
    max_tokens: int | None = None
    max_minutes: float | None = None
    across_harnesses: bool = False
    catalogue: str = ""
    axes: tuple[str, ...] = ()
    judge: str = ""
    judge_key_env: str = ""
    opened: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationFolder:
    """Paths below ``root``."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "evaluation.json"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    @property
    def submissions(self) -> Path:
        return self.root / "submissions"

    @property
    def suites(self) -> Path:
        return self.root / "suites"

    @property
    def verdicts(self) -> Path:
        return self.root / "cheats.jsonl"

    @property
    def axes(self) -> Path:
        return self.root / "axes.jsonl"

    @property
    def aspects(self) -> Path:
        return self.root / "aspects.jsonl"

    @property
    def temperatures(self) -> Path:
        """File with the temperature of each policy, once it is chosen."""
        return self.root / "temperatures.json"

    @property
    def regraded(self) -> Path:
        return self.root / "regraded.jsonl"

    @property
    def results(self) -> Path:
        return self.root / "results.json"

    @property
    def page(self) -> Path:
        return self.root / "results.html"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Create and lock the folder. Raises EvaluationError if that fails (it is in use, or holds other things), and
        in place of any error that a full disk causes in the body."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            strange = [p.name for p in self.root.iterdir() if not p.name.startswith(".") and p.name not in _OURS]
            if strange and not self.settings.exists():
                raise EvaluationError(f"--out {self.root} holds other things ({strange[0]}); choose another folder")
            busy = f"another evaluation works in {self.root}; wait for it, or choose another folder with --out"
            with locked(self.root, EvaluationError(busy)):
                yield
        except EvaluationError:
            raise
        except Exception as error:  # a full disk raises many types of errors, also of the database
            if problem := disk_problem(self.root, str(error)):
                raise EvaluationError(problem) from None
            if isinstance(error, OSError):
                raise EvaluationError(f"--out {self.root} cannot be used: {error}") from None
            raise


_OURS = ("suites", "trajectories", "submissions", "held_out.key")
"""Names that a folder may hold if its evaluation was killed before ``settle``."""


@dataclass(frozen=True)
class Split:
    """Suites that are evaluated, and those on which temperatures are chosen."""

    suites: tuple[Suite, ...]
    development: tuple[Suite, ...]


def split_tasks(suites: Sequence[Suite], wishes: Wishes, development: Sequence[Suite]) -> Split:
    """Set development tasks apart and apply ``--limit``, both in the order of ``draw_by_digest``. ``development``: the
    loaded suites of ``--development``, empty if it is a share. Raises EvaluationError."""
    share = development_share(wishes)
    evaluated, dev = [], list(development)
    for suite in suites:
        tasks: Sequence[Task] = draw_by_digest(suite.tasks, len(suite.tasks))
        if share:
            count = math.ceil(share * len(tasks))
            if count == len(tasks):
                raise EvaluationError(
                    f"--development {wishes.development}: nothing is left of the {len(tasks)} tasks of {suite.source}"
                )
            dev.append(Suite(suite.name, suite.source, tuple(tasks[:count])))
            tasks = tasks[count:]
        evaluated.append(Suite(suite.name, suite.source, tuple(tasks[: wishes.limit or None])))
    digests = {task.digest for suite in evaluated for task in suite.tasks}
    for suite in dev:
        if shared := [task.name for task in suite.tasks if task.digest in digests]:
            raise EvaluationError(
                f"--development {wishes.development}: {shared[0]} is evaluated too; a temperature must be chosen on "
                "other tasks"
            )
    if dev and not any(scored(task) for suite in dev for task in suite.tasks):
        raise EvaluationError(
            f"--development {wishes.development}: none of these tasks counts for a score; give a suite whose tasks do, "
            "or one temperature"
        )
    return Split(tuple(evaluated), tuple(dev))


def development_share(wishes: Wishes) -> float:
    """Return the share that ``--development`` gives, 0 if it names a suite or nothing. Raises EvaluationError."""
    try:
        share = float(wishes.development)
    except ValueError:
        return 0.0
    if not 0 < share < 1:
        raise EvaluationError(f"--development {wishes.development}: a share lies between 0 and 1, such as 0.2")
    return share


def check_wishes(wishes: Wishes) -> None:
    """Raise EvaluationError for mistakes that are visible from the command line alone."""
    if len(wishes.temperatures) > 1 and not wishes.development:
        raise EvaluationError(
            "--temperature gives several: say with --development on which tasks each policy's is chosen, a share such "
            "as 0.2 or a suite"
        )
    if len(wishes.temperatures) == 1 and wishes.development:
        raise EvaluationError("--development: there is nothing to choose; give several temperatures (0.3,0.6,1.0)")
    if (
        not wishes.temperatures
        or not all(0 <= temperature < math.inf for temperature in wishes.temperatures)
        or len(set(wishes.temperatures)) < len(wishes.temperatures)
    ):
        raise EvaluationError("--temperature: give each temperature once, none below 0")
    development_share(wishes)


def settings_of(
    wishes: Wishes, contestants: Sequence[Contestant], hashes: Mapping[str, str], split: Split, key: str
) -> dict[str, Any]:
    """Return everything that determines the results. Jobs, budgets, baseline and prices are not part of it: they may
    change from start to start. ``key``: digest of the held-out key (``key_digest``)."""
    return {
        "format": _FORMAT,
        "policies": {
            c.name: {
                "source": c.source,
                "digest": c.digest,
                "harness": hashes[c.name],
                "limits": str(c.recipe.sandbox.limits()),
                "grading": c.recipe.grading.model_dump(mode="json"),
                **({"strict": c.strict, "network": sorted(c.recipe.sandbox.allow)} if c.strict else {}),
            }
            for c in contestants
        },
        "suites": {suite.name: _described(suite) for suite in split.suites},
        "development": {suite.name: _described(suite) for suite in split.development},
        "samples": wishes.samples,
        "temperatures": list(wishes.temperatures),
        "seed": wishes.seed,
        "held_out_key": key,
    }


def _described(suite: Suite) -> dict[str, Any]:
    tasks = {task.name: {"digest": task.digest, "path": str(task.path.absolute())} for task in suite.tasks}
    return {"source": suite.source, "tasks": tasks}


_OPTIONS = {
    "format": "the version of woodshed",
    "policies": "POLICY, --agent or --open",
    "suites": "--suite, --limit, --split or the tasks themselves",
    "development": "--development",
    "samples": "--samples",
    "temperatures": "--temperature",
    "seed": "--seed",
    "held_out_key": "held_out.key in the folder",
}


def settle(folder: EvaluationFolder, settings: dict[str, Any]) -> None:
    """Write the settings into the folder, or check that it holds the same ones. Raises EvaluationError."""
    known = read_settings(folder)
    if known is None:
        write_json(folder.settings, settings)
        return
    known.setdefault("held_out_key", settings["held_out_key"])  # folders of earlier versions do not have it
    for key, option in _OPTIONS.items():
        if _comparable(known.get(key)) != _comparable(settings[key]):
            what = _first_difference(_comparable(known.get(key)), _comparable(settings[key]))
            raise EvaluationError(
                f"{folder.root} holds an evaluation with other settings ({option}: {what}); give the same command to "
                "go on with it, or choose another folder with --out"
            )
    # Episodes are stored under the position of their policy, and dicts are equal in any order.
    if list(known["policies"]) != list(settings["policies"]):
        raise EvaluationError(
            f"{folder.root} holds an evaluation of the same policies in another order (POLICY: "
            f"{', '.join(known['policies'])}); give them in this order, with --baseline for another baseline"
        )


def read_settings(folder: EvaluationFolder) -> dict[str, Any] | None:
    """Return the settings of the evaluation in a folder, or None. Raises EvaluationError if the file is damaged."""
    try:
        found = json.loads(folder.settings.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise EvaluationError(f"{folder.settings} is damaged ({error}); choose another folder with --out") from None
    if not isinstance(found, dict):
        raise EvaluationError(f"{folder.settings} is damaged (no object); choose another folder with --out")
    return found


def _comparable(value: Any) -> Any:
    """Return ``value`` without paths on this machine: the same tasks may be stored elsewhere."""
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items() if key not in ("path", "source")}
    return value


def _first_difference(known: Any, wanted: Any, where: str = "") -> str:
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in sorted({*known, *wanted}, key=str):
            if key not in known:
                return f"{where}{key} is new"
            if key not in wanted:
                return f"{where}{key} is missing"
            if known[key] != wanted[key]:
                return _first_difference(known[key], wanted[key], f"{where}{key} ")
    return f"{where}{known} there, {wanted} now"
