"""Compute ``results.json`` from stored episodes; nothing is run or graded here."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import harmonic_mean
from typing import Any

from woodshed.evaluate.axes import described
from woodshed.evaluate.cheating import judged, scored
from woodshed.evaluate.comparison import (
    EvaluatedEpisode,
    PolicyEpisodes,
    Price,
    Score,
    difference,
    fronts,
    score,
)
from woodshed.evaluate.pairs import pairs
from woodshed.evaluate.power import noise_floor, sample_variance
from woodshed.evaluate.run import group_name
from woodshed.evaluate.suites.base import Suite
from woodshed.record.jsonl import read_jsonl
from woodshed.record.run_directory import write_json
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import INFRA

from .plan import EvaluationFolder
from .policies import EvaluationError

FORMAT = "woodshed-evaluation-1"


def label(task: Task) -> str:
    """Return the label of a task in the groups of the store. It contains the task's digest, so that a changed task gets
    new episodes."""
    return _label(task.name, task.digest)


def _label(name: str, digest: str) -> str:
    return f"{name}@{digest[:12]}"


def evaluation_name(number: int, suite: str) -> str:
    """Return the name, in the store, of the evaluation of policy ``number`` on a suite."""
    return f"p{number:02d}-{suite}"


def stored_rows(
    settings: Mapping[str, Any], store: TrajectoryStore, number: int, suites: Sequence[Suite]
) -> Iterator[tuple[Mapping[str, Any], Suite, Task]]:
    """Yield (row in the store, suite, task) of all episodes of policy ``number``, except on development tasks.

    Episodes are stored under the digest that their task had at evaluation, so a task that was corrected since then
    keeps them.
    """
    for suite in suites:
        name = evaluation_name(number, suite.name)
        then = settings["suites"][suite.name]["tasks"]
        tasks = {group_name(name, _label(task.name, then[task.name]["digest"])): task for task in suite.tasks}
        for row in store.rows(f"source = 'eval' AND group_id LIKE '{name}:%'", order_by="id"):
            if row["group_id"] in tasks:
                yield row, suite, tasks[row["group_id"]]


def _episode(
    row: Mapping[str, Any],
    suite: str,
    task: Task,
    *,
    reasons: tuple[str, ...] | None,
    again: Mapping[str, Any] | None,
    axes: Mapping[str, float],
) -> EvaluatedEpisode:
    effort, lost = row["effort"], row["status"] == INFRA
    resolved = bool(row["resolved"]) if again is None else bool(again["resolved"])
    if again is not None and "cheating" in again:
        reasons = tuple(again["cheating"])
    known = reasons if judged(task) else None
    return EvaluatedEpisode(
        id=row["id"],
        suite=suite,
        task=task.name,
        resolved=None if lost else resolved,
        status=row["status"],
        turns=effort["turns"],
        sampled_tokens=effort["sampled_tokens"],
        context_tokens=effort["prompt_tokens"] + effort["tool_output_tokens"],
        seconds=max(0.0, row["ended"] - row["started"]),
        scored=scored(task),
        cheated=None if known is None else bool(known),
        reasons=known or (),
        flagged=tuple(filter(None, row["labels"].get("flagged", "").split(","))),
        axes=axes,
    )


def read_regraded(folder: EvaluationFolder) -> dict[str, dict[str, Any]]:
    """Return the newest outcome of ``regrade`` by episode id; the last one may have left some episodes out."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_jsonl(folder.regraded):
        found |= row["outcomes"]
    return found


def last_regrade(folder: EvaluationFolder) -> str:
    """Return the time of the last regrade; '' if there was none."""
    rows = read_jsonl(folder.regraded)
    return str(rows[-1]["when"]) if rows else ""


def prices_of(given: Sequence[str], names: Sequence[str]) -> dict[str, Price]:
    """Parse prices ``NAME=CONTEXT/SAMPLED`` (dollars per million tokens), by policy. Raises EvaluationError."""
    found = {}
    for text in given:
        name, _, amounts = text.rpartition("=")
        context, _, sampled = amounts.partition("/")
        if name not in names:
            raise EvaluationError(f"--price {text}: no policy is called {name!r}; there are {', '.join(names)}")
        try:
            found[name] = Price(float(context), float(sampled))
        except ValueError:
            raise EvaluationError(f"--price {text}: write NAME=CONTEXT/SAMPLED in dollars per million tokens") from None
        if not (found[name].context >= 0 and found[name].sampled >= 0):
            raise EvaluationError(f"--price {text}: a price is not negative")
    return found


def collect_policies(
    folder: EvaluationFolder,
    settings: Mapping[str, Any],
    store: TrajectoryStore,
    suites: Sequence[Suite],
    prices: Mapping[str, Price],
    values: Mapping[str, Mapping[str, float | None]],
) -> list[PolicyEpisodes]:
    """Return every policy of the evaluation with its stored episodes. ``values``: by episode and axis."""
    planned = settings["samples"] * sum(len(suite.tasks) for suite in suites)
    choices, regraded = read_choices(folder), read_regraded(folder)
    verdicts = {row["id"]: tuple(row["reasons"]) for row in read_jsonl(folder.verdicts)}
    found = []
    for number, (name, about) in enumerate(settings["policies"].items()):
        temperature, tried = choices.get(name, (math.nan, {}))
        episodes = [
            _episode(
                row,
                suite.name,
                task,
                reasons=verdicts.get(row["id"]),
                again=regraded.get(row["id"]),
                axes={axis: value for axis, value in values.get(row["id"], {}).items() if value is not None},
            )
            for row, suite, task in stored_rows(settings, store, number, suites)
        ]
        found.append(
            PolicyEpisodes(
                name=name,
                source=about["source"],
                harness_hash=about["harness"],
                episodes=episodes,
                planned=planned,
                temperature=temperature,
                tried=tried,
                price=prices.get(name),
                strict=about.get("strict", ""),
            )
        )
    return found


def read_axes(folder: EvaluationFolder) -> dict[str, dict[str, float | None]]:
    """Return the last measured values by episode id and axis."""
    return {row["id"]: row["values"] for row in read_jsonl(folder.axes)}


Choice = tuple[float, dict[float, float]]
"""Temperature of a policy, and the development score of each temperature that was tried."""


def read_choices(folder: EvaluationFolder) -> dict[str, Choice]:
    """Return the stored temperature choice of each policy, by name. Raises EvaluationError if the file is damaged."""
    found: dict[str, Choice] = {}
    try:
        for name, about in json.loads(folder.temperatures.read_text("utf-8")).items():
            tried = {float(at): math.nan if value is None else float(value) for at, value in about["tried"].items()}
            found[name] = float(about["temperature"]), tried
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EvaluationError(
            f"{folder.temperatures} is damaged ({type(error).__name__}: {error}); restore it, or choose another folder "
            "with --out"
        ) from None
    return found


def note_choice(folder: EvaluationFolder, name: str, choice: Choice) -> None:
    """Store the temperature choice of a policy, so that it never changes."""
    known = {**read_choices(folder), name: choice}
    rows = {
        n: {"temperature": t, "tried": {f"{at:g}": v for at, v in tried.items()}} for n, (t, tried) in known.items()
    }
    write_json(folder.temperatures, without_nan(rows))


def compute_results(
    policies: Sequence[PolicyEpisodes],
    suites: Sequence[Suite],
    settings: Mapping[str, Any],
    *,
    baselines: Sequence[str],
    across_harnesses: bool = False,
    note: str = "",
    regraded: str = "",
    judge: str = "",
    agreements: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return everything that table, page and file show, as JSON without nan. ``agreements``: of ``judge``, by aspect.
    ``evaluate/pairs.py`` decides which policies are compared."""
    seed = int(settings["seed"])
    scores = {policy.name: score(policy, seed=seed) for policy in policies}
    compared = [
        difference(policy, other, seed=seed, across_harnesses=across_harnesses)
        for policy, other in pairs(policies, baselines)
    ]
    result = {
        "format": FORMAT,
        "settings": settings,
        "complete": not note and all(_complete(policy) for policy in policies),
        "note": note,
        "regraded": regraded,
        "across_harnesses": across_harnesses,
        "prices": {p.name: [p.price.context, p.price.sampled] for p in policies if p.price is not None},
        "policies": [_policy(policy, scores[policy.name], suites, seed) for policy in policies],
        "baselines": list(baselines),
        "differences": [
            {
                "policy": each.policy,
                "baseline": each.baseline,
                "tasks": each.tasks,
                "gain": None if each.gain is None else vars(each.gain),
                "note": each.note,
                "axes": {name: vars(gain) for name, gain in each.axes.items()},
            }
            for each in compared
        ],
        "pareto": fronts(scores),
        "axes": described(axis for each in scores.values() for axis in each.axes),
        "judge": judge,
        "agreements": dict(agreements or {}),
        "tasks": _by_task(policies),
    }
    return {key: without_nan(value) for key, value in result.items()}


def _complete(policy: PolicyEpisodes) -> bool:
    return sum(e.resolved is not None for e in policy.episodes) >= policy.planned


def _policy(policy: PolicyEpisodes, total: Score, suites: Sequence[Suite], seed: int) -> dict[str, Any]:
    samples = list(policy.samples().values())
    several = any(len(each) > 1 for each in samples)
    return {
        "name": policy.name,
        "source": policy.source,
        "harness_hash": policy.harness_hash,
        "temperature": policy.temperature,
        "tried": {f"{at:g}": value for at, value in policy.tried.items()},
        "planned": policy.planned,
        **total.as_json(),
        "noise_floor": noise_floor(sample_variance(samples), len(samples), harmonic_mean(map(len, samples)))
        if several
        else math.nan,
        "suites": {suite.name: score(policy, suite.name, seed=seed).as_json() for suite in suites},
    }


def _by_task(policies: Sequence[PolicyEpisodes]) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Return [solved, samples] by suite, task and policy."""
    found: dict[str, dict[str, dict[str, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for policy in policies:
        for (suite, task), passed in policy.samples().items():
            found[suite][task][policy.name] = [sum(passed), len(passed)]
    return {suite: dict(sorted(tasks.items())) for suite, tasks in found.items()}


def without_nan(value: Any) -> Any:
    """Return ``value`` with None for every nan and infinity, which JSON does not support."""
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_results(folder: EvaluationFolder) -> dict[str, Any] | None:
    """Return the results of an evaluation, None if there are none yet. Raises EvaluationError if the file is
    damaged."""
    try:
        found = json.loads(folder.results.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{folder.results} is damaged ({error}); delete it and evaluate again") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise EvaluationError(f"{folder.root}: no results.json of an evaluation by this version; evaluate again")
    return found


def write_results(folder: EvaluationFolder, results: dict[str, Any]) -> None:
    write_json(folder.results, results)
