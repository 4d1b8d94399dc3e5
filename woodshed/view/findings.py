"""What monitors flagged in a run, for people: ``woodshed monitors``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from woodshed.record.store import TrajectoryStore

from .summary import flagged


class FindingsError(Exception):
    """There is nothing to show; the message says why."""


def print_findings(trajectories: Path, console: Console, *, only: Sequence[str] = (), show: int = 10) -> int:
    """A table of counts by source, then up to ``show`` flagged episodes with their findings. How many are flagged."""
    if not trajectories.exists():
        raise FindingsError(f"{trajectories.parent}: no trajectories; give the directory of a run that has some")
    store = TrajectoryStore(trajectories)
    try:
        rows = {source: store.rows(f"source = '{source}'") for source in ("train", "eval", "live")}
        counts = {source: flagged(found) for source, found in rows.items()}
        names = sorted({n for c in counts.values() for n in c if not only or n in only})
        table = Table(title="episodes that monitors flagged")
        for column in ("monitor", *(f"{source} ({len(found)})" for source, found in rows.items() if found)):
            table.add_column(column)
        for name in names:
            table.add_row(name, *(str(counts[source].get(name, 0)) for source, found in rows.items() if found))
        if names:
            console.print(table)
        else:
            total = sum(map(len, rows.values()))
            console.print(f"nothing flagged in {total} episodes")
        wanted = set(names)
        hits = [r for found in rows.values() for r in found if wanted & set(r["labels"].get("flagged", "").split(","))]
        for row in hits[:show]:
            trajectory = next(t for t in store.group(row["group_id"]) if t.id == row["id"])
            verdict = "resolved" if row["resolved"] else "not resolved"
            console.print(Text(f"{row['id']}  {row['task']}  {verdict}", style="bold"), soft_wrap=True)
            for finding in trajectory.findings:
                if finding["monitor"] in wanted:
                    where = f"turn {finding['turn'] + 1}" if finding["turn"] >= 0 else "whole"
                    console.print(Text(f"  {finding['monitor']}, {where}: {finding['evidence']}"), soft_wrap=True)
        return len(hits)
    finally:
        store.close()
