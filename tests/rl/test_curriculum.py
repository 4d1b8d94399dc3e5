"""Which task comes next: what teaches is preferred, what is unknown is tried, a restart changes nothing."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from woodshed.record.history import Rating
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Effort, Outcome, Trajectory
from woodshed.rl.curriculum import Curriculum, features, replay
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import CurriculumSettings

RATES = {"never": 0.0, "rarely": 0.05, "half": 0.5, "always": 1.0}
GROUP = 8


def task(number: int, kind: str) -> Task:
    info = TaskInfo(kind=kind, key=f"family{number % 3}:x", provenance={"generator": "mutate"})
    return Task(Path("nowhere"), f"org/{kind}-{number}", "", info, {})


def group(kind: str, rng: random.Random, turns: int = 3, rate: float | None = None) -> list[Trajectory]:
    solved = [rng.random() < (RATES[kind] if rate is None else rate) for _ in range(GROUP)]
    return [
        Trajectory(
            id=f"{i}",
            task="t",
            group="g",
            source="train",
            harness_hash="h",
            policy="p",
            status="submitted",
            segments=[],
            outcome=Outcome(resolved=s),
            effort=Effort(turns=turns),
        )
        for i, s in enumerate(solved)
    ]


def simulate(settings: CurriculumSettings, seed: int, steps: int = 150) -> list[str]:
    """Kinds in the order in which they were chosen."""
    rng = random.Random(seed)
    unused = [task(n, kind) for kind in RATES for n in range(200)]
    curriculum, kinds = Curriculum(settings, seed), []
    for position in range(steps):
        chosen = curriculum.choose(unused, position, position / steps)
        unused.remove(chosen)
        kinds.append(chosen.info.kind)
        curriculum.update(chosen, group(chosen.info.kind, rng), position // 4)
    return kinds


@pytest.mark.parametrize("seed", range(3))
def test_what_teaches_is_preferred_and_nothing_is_forgotten(seed: int) -> None:
    late = Counter(simulate(CurriculumSettings(order="variance"), seed)[50:])
    assert late["half"] > 0.45 * late.total()  # a quarter of the tasks are of that kind
    assert set(late) == set(RATES), "every kind is tried again now and then"


def test_a_policy_that_changes_is_followed() -> None:
    """What could not be solved becomes solvable: the curriculum finds out."""
    settings, rng = CurriculumSettings(order="variance", half_life=5.0), random.Random(0)
    curriculum, unused = Curriculum(settings, 0), [task(n, kind) for kind in ("never", "always") for n in range(300)]
    chosen: list[str] = []
    for position in range(240):
        rate = {"never": 0.0 if position < 60 else 0.5, "always": 1.0}
        one = curriculum.choose(unused, position, 0.0)
        unused.remove(one)
        chosen.append(one.info.kind)
        curriculum.update(one, group(one.info.kind, rng, rate=rate[one.info.kind]), position // 4)
    assert Counter(chosen[160:])["never"] > 0.6 * 80


def test_half_life_and_group_weight_decide_how_sure_the_curriculum_is() -> None:
    """Old failures of a kind, and tasks that are always solved: the former are chosen if failures are forgotten, the
    latter if one group counts as little evidence."""

    def share(kind: str, settings: CurriculumSettings) -> float:
        curriculum, rng = Curriculum(settings, 0), random.Random(0)
        for number in range(20):
            curriculum.update(task(number, "never"), group("never", rng), 0)
            curriculum.update(task(number, "always"), group("always", rng), 0)
        for number in range(20, 22):
            curriculum.update(task(number, "never"), group("half", rng), 40)
        left = [task(n, kind) for kind in ("never", "always", "half") for n in range(100, 130)]
        curriculum.update(left.pop(), group("half", rng), 40)
        return sum(curriculum.choose(left, n, 0.0).info.kind == kind for n in range(300)) / 300

    forgets, remembers = (CurriculumSettings(order="variance", half_life=h) for h in (4.0, 1e6))
    assert share("never", forgets) > share("never", remembers) + 0.1
    unsure, sure = (CurriculumSettings(order="variance", half_life=1e6, group_weight=w) for w in (0.01, 1.0))
    assert share("always", unsure) > share("always", sure) + 0.1


def test_counts_and_weights_by_their_definition() -> None:
    """Decayed counts of graded rollouts in plain floats, and the weight of a task from the same random draws."""
    settings = CurriculumSettings(order="variance", half_life=4.0, group_weight=0.5, harder=1.5)
    curriculum, rng = Curriculum(settings, 0), random.Random(5)
    counts: dict[str, list[float]] = {}
    for number, version in enumerate((0, 3, 2, 9)):  # a group of version 2 may finish after one of version 3
        of, made = task(number, "half"), group("half", rng, turns=2 + number)
        made = [replace(t, effort=Effort(turns=2 + number, thinking_tokens=150)) for t in made]
        made[0] = replace(made[0], outcome=None, status="infra_error")
        curriculum.update(of, made, version)
        for name in ("", *features(of)):
            row = counts.setdefault(name, [0.0, 0.0, 0.0, 0.0])
            keep = 0.5 ** (max(0.0, version - row[3]) / 4)
            solved = sum(t.outcome is not None and t.outcome.resolved for t in made)
            fresh = [solved, GROUP - 1 - solved, (GROUP - 1) * (2 + number + 1.5)]
            row[:3] = [old * keep + new for old, new in zip(row, fresh)]
            row[3] = max(row[3], version)
    found = {"": curriculum._all, **curriculum._seen}
    assert {name: [s.solved, s.failed, s.effort, s.version] for name, s in found.items()} == {
        name: pytest.approx(row) for name, row in counts.items()
    }

    of = task(3, "half")
    curriculum.set_prior(of, Rating("g", "p", 0, 6, 2, "rate", "2026-01-02T03:04:05Z", turns=4.0, thinking_tokens=50.0))
    known = [*(counts[name] for name in features(of)), [2, 4, 6 * 4.5]]
    everything = counts[""]
    prior = (everything[0] + 1) / (everything[0] + everything[1] + 2)
    ours, theirs = random.Random(1), random.Random(1)
    odds, effort = math.log(prior / (1 - prior)), 0.0
    for solved, failed, spent, *_ in known:
        draw = theirs.betavariate(0.5 * solved + 2 * prior, 0.5 * failed + 2 * (1 - prior))
        odds += math.log(draw / (1 - draw)) - math.log(prior / (1 - prior))
        effort += spent / (solved + failed) / len(known)
    harder = effort / (everything[2] / (everything[0] + everything[1])) - 1
    p = 1 / (1 + math.exp(-odds))
    expected = p * (1 - p) * (1 + 1.5 * 0.5 * harder)
    assert curriculum._weight(of, ours, 0.5) == pytest.approx(expected) and abs(harder) > 0.01


def test_what_takes_more_effort_weighs_more_towards_the_end() -> None:
    def share(harder: float, progress: float) -> float:
        rng, settings = random.Random(1), CurriculumSettings(order="variance", harder=harder)
        curriculum = Curriculum(settings, 0)
        for _ in range(20):
            curriculum.update(task(0, "half"), group("half", rng, turns=2), 0)
            curriculum.update(task(0, "rarely"), group("rarely", rng, turns=8, rate=0.5), 0)
        tasks = [task(n, kind) for kind in ("half", "rarely") for n in range(40)]
        picks = [curriculum.choose(tasks, n, progress).info.kind for n in range(400)]
        return picks.count("rarely") / len(picks)

    assert share(harder=1.0, progress=1.0) > share(harder=1.0, progress=0.0) + 0.05
    assert abs(share(harder=0.0, progress=1.0) - 0.5) < 0.1


def test_what_a_task_was_rated_at_counts() -> None:
    curriculum, kinds = Curriculum(CurriculumSettings(order="variance"), 0), ("never", "half", "always")
    tasks = [task(n, "half") for n in range(30)]  # nothing but their ratings tells them apart
    of = {t.name: kinds[n % 3] for n, t in enumerate(tasks)}
    for each in tasks:
        solved = round(16 * RATES[of[each.name]])
        curriculum.set_prior(each, Rating("g", "p", 0, 16, solved, "rate", "2026-01-02T03:04:05Z", turns=3.0))
    picks = Counter(of[curriculum.choose(tasks, n, 0.0).name] for n in range(300))
    assert picks["half"] > 0.45 * picks.total() and set(picks) == set(kinds)


def test_a_restart_goes_on_with_the_same_choices(tmp_path: Path) -> None:
    settings, rng = CurriculumSettings(order="variance"), random.Random(3)
    ledger, curriculum = Ledger(tmp_path / "state.sqlite"), Curriculum(settings, 7)
    tasks = {t.name: t for t in (task(n, kind) for kind in RATES for n in range(20))}
    stored: dict[str, Sequence[Trajectory]] = {}
    for position in range(12):
        unused = [t for name, t in sorted(tasks.items()) if name not in ledger.dispatched()]
        row = ledger.dispatch(curriculum.choose(unused, position, 0.0).name, position, position // 3, GROUP)
        stored[row.id] = group(tasks[row.task].info.kind, rng)
        ledger.finish(row.id, "ready")
        curriculum.update(tasks[row.task], stored[row.id], row.version)
    order = [row.id for row in ledger.finished_groups()]
    ledger.finish("g000000", "stale")
    assert [row.id for row in ledger.finished_groups()] == order, "it was dropped later, and finished first"
    again = Curriculum(settings, 7)
    replay(again, ((tasks[r.task], stored[r.id], r.version) for r in ledger.finished_groups()))
    left = [t for name, t in sorted(tasks.items()) if name not in ledger.dispatched()]
    assert len(left) == len(tasks) - 12
    for position in range(12, 40):
        assert again.choose(left, position, 0.5).name == curriculum.choose(left, position, 0.5).name


def test_features_say_what_tasks_have_in_common() -> None:
    assert features(task(4, "half")) == ("from family1", "kind half", "by mutate")
    info = TaskInfo(kind="", key="boltons:x.py:f", provenance={"package": "boltons"})
    assert features(Task(Path("nowhere"), "org/b", "", info, {})) == ("from boltons",)
