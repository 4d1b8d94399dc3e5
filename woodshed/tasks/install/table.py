"""What an install came to, for reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodshed.tasks.generators.packages.catalogue import Module, Wheel

from .kit import Pinned
from .run import Outcome


def text_of(outcomes: Sequence[Outcome]) -> str:
    """A line for each source, below it its targets, what was resolved and what is worth knowing."""
    return "\n".join(line for outcome in outcomes for line in _lines(outcome))


def _lines(outcome: Outcome) -> list[str]:
    done = outcome.install
    state = "installed" if done else "discarded"
    lines = [f"{state:<10} {outcome.source}  {outcome.tries} {'try' if outcome.tries == 1 else 'tries'}"]
    why = {reached.goal: reached.why for reached in outcome.last}
    lines += [f"  target    {goal.command}" + (f"  ({why[goal]})" if why.get(goal) else "") for goal in outcome.targets]
    if done:
        lines.append(f"  resolved  {', '.join(map(_pinned, done.installed)) or 'nothing needed'}")
        lines += [f"  plugins   {', '.join(done.plugins)}"] if done.plugins else []
        lines += [f"  files     {', '.join(sorted(done.added))}"] if done.added else []
        lines += ["  services  started by start.sh"] if done.recipe.start else []
        lines += [f"  note      {note}" for note in done.notes]
    return lines + ([f"  why       {outcome.error}"] if outcome.error else [])


def json_of(outcome: Outcome) -> dict[str, Any]:
    done = outcome.install
    return {
        "source": outcome.source, "installed": done is not None, "tries": outcome.tries, "error": outcome.error,
        "targets": [g.table() for g in outcome.targets],
        "wheels": [vars(p) for p in done.installed if isinstance(p, Wheel)] if done else [],
        "modules": [vars(p) for p in done.installed if isinstance(p, Module)] if done else [],
        "plugins": list(done.plugins) if done else [], "files": sorted(done.added) if done else [],
        "notes": list(done.notes) if done else [],
    }  # fmt: skip


def _pinned(one: Pinned) -> str:
    return f"{one.name if isinstance(one, Wheel) else one.package} {one.version}"
