"""What a renewal came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.library.cost import rate

_MEANING = {
    "unrated": "no rollouts yet", "undecided": "too few rollouts to say", "teaches": "stay as they are",
    "too easy": "retired", "unsolved": "checked again, quarantined or broken",
    "retired": "before", "quarantined": "before", "broken": "before",
}  # fmt: skip


@dataclass
class Renewal:
    """``found``: training task -> what its ratings say, or the status that it had. ``hardened``: task that was too easy
    -> names of the tasks in ``out`` that take its place. ``broken``: task that nobody solves -> the gates it fails.
    ``released``: quarantined ones that somebody has solved since. ``kept``: tasks in ``out``, which cost
    ``core_seconds`` in all. ``build``: what was tried to harden them."""

    out: Path
    found: dict[str, str] = field(default_factory=dict)
    hardened: dict[str, list[str]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    build: BuildReport | None = None
    kept: int = 0
    core_seconds: float = 0.0

    def text(self) -> str:
        """The table, then what was made, what is broken and why."""
        counts = Counter(self.found.values())
        lines = [f"{'training tasks':16} {len(self.found):6}"]
        lines += [f"  {what:14} {counts[what]:6}  {means}" for what, means in _MEANING.items() if counts[what]]
        if self.released:
            lines.append(f"  {'released':14} {len(self.released):6}  were quarantined; somebody has solved them since")
        if self.build is not None and self.build.packages:
            lines += ["", "harder forms:", self.build.table()]
        for name, made in sorted(self.hardened.items()):
            lines.append(f"hardened: {name} -> {', '.join(made) or 'nothing that passes the gates'}")
        lines += [f"broken: {name}: {why}" for name, why in sorted(self.broken.items())]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, rate(self.kept, self.core_seconds)])

    def as_json(self) -> dict[str, Any]:
        build = [p.counts() for p in self.build.packages] if self.build is not None else []
        return {
            "out": str(self.out), "found": self.found, "hardened": self.hardened, "broken": self.broken,
            "released": self.released, "notes": self.notes, "build": build, "tasks": self.kept,
            "core_seconds": round(self.core_seconds, 2),
            "tasks_per_core_hour": round(3600 * self.kept / self.core_seconds, 1) if self.core_seconds else None,
        }  # fmt: skip
