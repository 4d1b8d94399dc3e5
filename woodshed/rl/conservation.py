"""Conservation check: every dispatched rollout was trained, or dropped for exactly one named reason.

The fates in the ledger are compared with records that other code writes at other times: the number of rollouts noted at
dispatch, the stored trajectories, the metrics of each batch, and what the trainer counted in the batches it read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TRAINED: Final = "trained"

REASONS: Final = {
    "zero_advantage": "trained batches: no token of the rollout weighs anything, as in groups of equal rewards",
    "flat_group": "dynamic sampling replaced the group, whose rollouts would weigh nothing",
    "infra_error": "something outside the policy ended the rollout",
    "abandoned_fork": "the box of the fork did not repeat the beginning of its root",
    "quarantined": "a monitor found what the recipe quarantines",
    "broken_task": "nobody solved the task, and its own reference solution fails",
    "unpaired": "fewer graded rollouts were left in the group than the algorithm compares",
    "stale": "the group's oldest token was older than rl.max_token_age when a batch was formed",
    "unused": "the last batch was formed before the group was needed",
}
"""Reasons why a rollout is not trained, and what they mean."""


IS_FORK: Final = "(id GLOB '*.f[0-9]*')"
"""SQL condition on ``id``: true for a fork, ``<root>.f<number>``."""

IS_REPLACEMENT: Final = f"(id GLOB '*.[0-9]*' AND NOT {IS_FORK})"
"""SQL condition on ``id``: true for a replacement, ``<member>.<number>``; forks of replacements count as forks."""


class ConservationError(Exception):
    """Rollouts were lost or counted twice; the message names the difference."""


@dataclass(frozen=True)
class Conservation:
    """Counts of rollouts by fate. ``dispatched``: as noted at dispatch, including ``replacements`` and ``forks``.
    ``dropped``: by reason. ``undecided``: in flight or waiting for a batch. ``by_step``: trained rollouts of each
    batch."""

    dispatched: int
    trained: int
    dropped: Mapping[str, int]
    undecided: int
    replacements: int
    forks: int
    by_step: Mapping[int, int]

    @property
    def difference(self) -> int:
        """Dispatched rollouts without an entry (positive), or entries that were never dispatched (negative)."""
        return self.dispatched - self.trained - sum(self.dropped.values()) - self.undecided

    def __str__(self) -> str:
        terms = [f"{self.trained} trained", *(f"{count} {reason}" for reason, count in self.dropped.items() if count)]
        if self.undecided:
            terms.append(f"{self.undecided} undecided")
        if self.difference:
            terms.append(f"{self.difference} UNACCOUNTED")
        some = "".join(
            f", {count} as {kind}"
            for kind, count in (("replacements", self.replacements), ("forks", self.forks))
            if count
        )
        return f"{self.dispatched} rollouts dispatched{some} = {' + '.join(terms)}"


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database file, which is not created. Its path may have characters with a meaning in a URI."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)


def read_conservation(ledger: Path) -> Conservation | None:
    """Return the counts of a ledger file, opened read-only; None if it is missing or too old to count rollouts."""
    if not ledger.exists():
        return None
    with closing(open_read_only(ledger)) as db:
        try:
            return _counts(db)
        except sqlite3.OperationalError as error:
            if "no such" in str(error):  # a ledger of an earlier version
                return None
            raise


def check_conservation(
    ledger: Path,
    stored: Collection[str],
    batches: Sequence[Mapping[str, Any]],
    trainer: Sequence[Mapping[str, Any]],
    *,
    finished: bool = True,
) -> Conservation:
    """Raise ConservationError unless the fates in the file ``ledger`` agree with the other records; return the counts.

    ``stored``: ids of the stored training trajectories. ``batches``, ``trainer``: the lines of
    ``metrics/rollouts.jsonl`` and ``metrics/trainer.jsonl``. ``finished``: the stage is over, so no rollout may be
    undecided.
    """
    with closing(open_read_only(ledger)) as db:
        found = _counts(db)
        fates: dict[str, str | None] = dict(db.execute("SELECT id, fate FROM rollouts"))
    wrong: list[str] = []
    if found.difference:
        wrong.append(f"{found.difference} of {found.dispatched} dispatched rollouts are neither trained nor dropped")
    if finished and found.undecided:
        wrong.append(_named("without a fate after the last step", [id for id, fate in fates.items() if fate is None]))
    if unknown := {fate for fate in fates.values() if fate is not None} - {TRAINED, *REASONS}:
        wrong.append(f"unknown reasons: {', '.join(sorted(unknown))}")
    must_exist = {id for id, fate in fates.items() if fate not in (None, "unused")}
    if lost := must_exist - set(stored):
        wrong.append(_named("counted but not stored", lost))
    if strange := set(stored) - set(fates):
        wrong.append(_named("stored but never dispatched", strange))
    for name, lines, key in (("rollouts", batches, "trained"), ("trainer", trainer, "rollouts")):
        for line in lines:
            step, counted = int(line["step"]), line.get(key)
            expected = found.by_step.get(step, 0)
            if counted is not None and counted != expected:
                wrong.append(
                    f"step {step}: {expected} rollouts are trained by the ledger, {counted:g} by metrics/{name}.jsonl"
                )
    if wrong:
        raise ConservationError(f"rollouts are not conserved ({found}): " + "; ".join(wrong))
    return found


def _counts(db: sqlite3.Connection) -> Conservation:
    (dispatched,) = db.execute("SELECT COALESCE(SUM(dispatched), 0) FROM groups").fetchone()
    counts: dict[str | None, int] = dict(db.execute("SELECT fate, COUNT(*) FROM rollouts GROUP BY fate"))
    (again,) = db.execute(f"SELECT COUNT(*) FROM rollouts WHERE {IS_REPLACEMENT}").fetchone()
    (forks,) = db.execute(f"SELECT COUNT(*) FROM rollouts WHERE {IS_FORK}").fetchone()
    query = "SELECT step, COUNT(*) FROM rollouts WHERE fate = ? GROUP BY step"
    return Conservation(
        dispatched=int(dispatched),
        trained=counts.pop(TRAINED, 0),
        undecided=counts.pop(None, 0),
        dropped={str(reason): counts[reason] for reason in sorted(counts, key=str)},
        replacements=int(again),
        forks=int(forks),
        by_step=dict(db.execute(query, (TRAINED,))),
    )


def _named(what: str, ids: Collection[str]) -> str:
    some = sorted(ids)[:5]
    more = f" and {len(ids) - len(some)} more" if len(ids) > len(some) else ""
    return f"{len(ids)} {what} ({', '.join(some)}{more})"
