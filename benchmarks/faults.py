"""Provoke failures and check the source to which they are attributed; writes benchmarks/results/faults.json.

    python benchmarks/faults.py [--only NAME ...] [--backends namespace gvisor] [--out benchmarks/results/faults.json]

Every cause in docs/errors.md is tried for real: boxes, a gateway on a port, episodes up to the reward, gradings, gates,
rollouts of a run. ``misattributed``: number of failures that were attributed to another source, or ended in another
state, than the table says. Backends that do not work here are left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from result import write_result

from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.layers import LayerStore

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.faults.causes import CAUSES, Cause, attempt  # noqa: E402  (causes live in the tests)
from tests.faults.ground import UNTRIED, Found  # noqa: E402


def tried(cause: Cause, backend: str, layers: LayerStore) -> dict[str, Any]:
    """Try one cause and return its row of the result: expected and found source, state, seconds."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, seconds = asyncio.run(attempt(cause, Path(folder), layers, backend))
        except Exception as error:  # an exception that escapes has no source
            found, seconds = Found("none", f"{type(error).__name__}: {error}"), 0.0
    row = {
        "cause": cause.name,
        "backend": backend,
        "by": cause.by,
        "what": " ".join(cause.what.split()),
        "source_expected": cause.source,
        "source_found": found.source,
        "state": found.state,
        "seconds": round(seconds, 2),
    }
    right = found.source == cause.source and found.state in cause.states
    return {**row, "right": right, **({} if right else {"detail": asdict(found)})}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=sorted(CAUSES), default=list(CAUSES))
    parser.add_argument("--backends", nargs="+", default=["namespace", "gvisor"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows: list[dict[str, Any]] = []
    left_out = {}
    with tempfile.TemporaryDirectory() as folder:
        layers = LayerStore(Path(folder) / "layers")
        for backend in arguments.backends:
            try:
                probe = open_backend(backend).probe()
                reasons = "" if probe.ok else "; ".join(probe.reasons)
            except Exception as error:
                reasons = str(error)
            if reasons:
                left_out[backend] = reasons
                continue
            for name in arguments.only:
                if backend not in CAUSES[name].backends:
                    continue
                row = tried(CAUSES[name], backend, layers)
                print(f"{'ok   ' if row['right'] else 'WRONG'} {backend:10} {name:34} {row['state']}", flush=True)
                rows.append(row)
    done = [row for row in rows if row["state"] != UNTRIED]
    figures: dict[str, float | None] = {
        "causes": len({row["cause"] for row in done}),
        "tried": len(done),
        "misattributed": sum(not row["right"] for row in done),
        "untried": len(rows) - len(done),
        "longest_seconds": max((row["seconds"] for row in done), default=None),
    }
    for source in ("box", "submission", "host", "endpoint"):
        figures[f"by_{source}"] = len({row["cause"] for row in done if row["by"] == source})
    write_result("faults", figures, {"attempts": rows, "left_out": left_out}, arguments.out)


if __name__ == "__main__":
    main()
