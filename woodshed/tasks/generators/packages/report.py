"""Records of a build: the yield report (one line per source), the ledger of verdicts, and the rejections.

The ledger holds one JSON line per verdict, so that a build that was stopped continues where it was.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.jsonl import JsonLines
from woodshed.record.task import Task, TaskError

from .cost import rate


@dataclass
class PackageYield:
    """One line of the yield report. ``rejected``: reason -> number of candidates; ``error``: why the package could not
    be used; ``kinds``: kind -> [tried, kept]; ``smaller``: [tried, kept] of groups that were tried again without some
    functions (counted in ``kinds`` too)."""

    package: str
    tests: int = 0
    functions: int = 0
    kept: int = 0
    tried: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    error: str = ""
    finished: bool = False
    notes: list[str] = field(default_factory=list)
    kinds: dict[str, list[int]] = field(default_factory=dict)
    smaller: list[int] = field(default_factory=lambda: [0, 0])

    def count(self, kind: str, kept: bool) -> None:
        """Count one candidate of a kind."""
        both = self.kinds.setdefault(kind, [0, 0])
        both[0] += 1
        both[1] += kept

    def counts(self) -> dict[str, Any]:
        """The line without its times, notes and state: the same for an uninterrupted and for a continued build."""
        table = {k: v for k, v in vars(self).items() if k not in ("seconds", "finished", "notes")}
        return {**table, "rejected": dict(sorted(self.rejected.items())), "kinds": dict(sorted(self.kinds.items()))}


@dataclass
class BuildReport:
    """Result of a build: yields, and reasons why candidates were rejected. ``tasks``: number of tasks in the folder;
    ``core_seconds``: processor time of all processes of all starts that made them, 0 if it was not measured."""

    packages: list[PackageYield] = field(default_factory=list)
    seconds: float = 0.0
    tasks: int = 0
    core_seconds: float = 0.0

    @property
    def kept_share(self) -> float:
        tried = sum(p.tried for p in self.packages)
        return sum(p.kept for p in self.packages) / tried if tried else 0.0

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """kind -> (tried, kept) over all packages."""
        found: dict[str, tuple[int, int]] = {}
        for line in self.packages:
            for kind, (tried, kept) in line.kinds.items():
                before = found.get(kind, (0, 0))
                found[kind] = (before[0] + tried, before[1] + kept)
        return found

    def table(self) -> str:
        """The report as text: one line per package, totals by kind, notes."""
        width = max([14, *(len(p.package) for p in self.packages)])
        lines = [f"{'source':{width}} {'tests':>6} {'funcs':>6} {'tried':>6} {'kept':>5} {'s':>6}  rejected, and why"]
        for p in self.packages:
            why = p.error or ", ".join(f"{n} {reason}" for reason, n in p.rejected.most_common())
            counts = f"{p.tests:6} {p.functions:6} {p.tried:6} {p.kept:5} {p.seconds:6.1f}"
            lines.append(f"{p.package:{width}} {counts}  {why}")
        kept, tried = sum(p.kept for p in self.packages), sum(p.tried for p in self.packages)
        share = f"kept {self.kept_share:.0%}"
        lines.append(f"{'all':{width}} {'':6} {'':6} {tried:6} {kept:5} {self.seconds:6.1f}  {share}")
        for kind, (tried, kept) in sorted(self.by_kind().items()):
            lines.append(f"{'  ' + kind:{width}} {'':6} {'':6} {tried:6} {kept:5} {'':6}  kept {kept / tried:.0%}")
        again, kept = (sum(p.smaller[n] for p in self.packages) for n in (0, 1))
        if again:
            lines.append(f"{again} groups were tried again without guessable functions, {kept} kept")
        lines += [f"note: {p.package}: {note}" for p in self.packages for note in p.notes]
        if self.core_seconds:
            lines.append(rate(self.tasks, self.core_seconds))
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Merge these lines, without their times, into the report of all builds of a folder, at ``path``."""
        try:
            known = {entry["package"]: entry for entry in json.loads(path.read_text("utf-8"))}
        except (OSError, ValueError, TypeError, KeyError):
            known = {}
        known.update({p.package: p.counts() for p in self.packages})
        write_whole(path, json.dumps([known[name] for name in sorted(known)], indent=1) + "\n")


class Ledger:
    """The verdicts in ``path`` with this ``fingerprint``; candidates with another fingerprint are tried again."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._lines = JsonLines(path)
        rows = [row for row in self._lines.rows() if row.get("fingerprint") == fingerprint]
        self.verdicts: dict[str, str | None] = {row["slug"]: row["rejected"] for row in rows if "rejected" in row}
        self.guessable: dict[str, tuple[str, ...]] = {
            row["slug"]: tuple(row["guessable"]) for row in rows if "guessable" in row
        }
        """Slug of a candidate that was rejected with ``Guessable`` -> its guessable functions."""
        self._passed = {(row["slug"], row["passed"]) for row in rows if "passed" in row}

    def find(self, slug: str, out: Path) -> tuple[Task | None, str | None]:
        """Return (task, None) if it was kept and can be loaded, (None, reason) if rejected, (None, None) if unknown."""
        if slug not in self.verdicts:
            return None, None
        why = self.verdicts[slug]
        if why is not None:
            return None, why
        try:
            return Task.load(out / slug), None
        except TaskError:
            return None, None

    def note(self, slug: str, rejected: str | None, guessable: tuple[str, ...] = ()) -> None:
        self.verdicts[slug] = rejected
        more = {"guessable": guessable} if guessable else {}
        if guessable:
            self.guessable[slug] = guessable
        self._lines.append({"slug": slug, "rejected": rejected, **more, "fingerprint": self.fingerprint})

    def has_passed(self, slug: str, gate: str) -> bool:
        """Return whether a kept task has passed a gate that only some tasks go through (``exploits``)."""
        return (slug, gate) in self._passed

    def note_passed(self, slug: str, gate: str) -> None:
        self._passed.add((slug, gate))
        self._lines.append({"slug": slug, "passed": gate, "fingerprint": self.fingerprint})


class Rejected(Exception):
    """The candidate did not become a task; the message is the reason, which the report counts."""


class Guessable(Rejected):
    """No value tells a fix of some changed ``functions`` (``CoveredFunction.place``) from a guess."""

    def __init__(self, why: str, functions: tuple[str, ...]) -> None:
        super().__init__(why)
        self.functions = functions
