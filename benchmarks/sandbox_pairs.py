"""The part of ``sandboxes.py`` in which one box attacks another, as this user and, for root, as an ordinary user too.

    python benchmarks/sandbox_pairs.py

measures only this part: ``results/sandbox.json`` keeps its other figures, and records when and where these were
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from result import RESULTS, commit, hardware

from woodshed.attacks.escapes.beside import BACKENDS, Beside, beside_backend
from woodshed.sandbox import open_backend
from woodshed.sandbox.protocol import SandboxError

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.sandbox.ordinary import run_as_ordinary_user  # noqa: E402  (what runs as another user lives in the tests)

_ORDINARY = """
import json, sys
from pathlib import Path
from woodshed.attacks.escapes.beside import beside_backend
print(json.dumps([vars(each) for each in beside_backend(sys.argv[2], Path(sys.argv[1]))]))
"""


def measure_pairs() -> dict[str, list[dict[str, Any]]]:
    """Return the outcome of every attempt of one box against another, by backend and user."""
    found = {}
    for name in BACKENDS:
        try:
            if not open_backend(name).probe().ok:
                continue
        except SandboxError:
            continue
        user = "root" if os.geteuid() == 0 else "an ordinary user"
        found[f"{name}, {user}"] = [_row(each) for each in beside_backend(name)]
        if os.geteuid() == 0:
            found[f"{name}, an ordinary user"] = [_row(each) for each in _as_ordinary_user(name)]
    return found


def pair_figures(found: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """Return the figures. ``pair_disturbed``: attempts that affected the other box unexpectedly; ``pair_known``:
    attempts with a known effect, described in docs/sandboxes.md."""
    tried = [each for every in found.values() for each in every]
    return {
        "pair_attempts": len(tried),
        "pair_disturbed": sum(bool(each["evidence"]) and not each["known"] for each in tried),
        "pair_known": sum(bool(each["evidence"] and each["known"]) for each in tried),
    }


def _as_ordinary_user(name: str) -> list[Beside]:
    said = run_as_ordinary_user(_ORDINARY, name)
    return [Beside(**row) for row in json.loads(said)]


def _row(each: Beside) -> dict[str, Any]:
    return {**vars(each), "known": each.known if each.evidence else ""}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = RESULTS / "sandbox.json"
    result = json.loads(path.read_text())
    found = measure_pairs()
    figures = pair_figures(found)
    result["figures"] |= figures
    result["detail"]["pairs"] = found
    result["detail"]["pairs_measured"] = {
        "command": "python benchmarks/sandbox_pairs.py",
        "commit": commit(),
        "hardware": hardware(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load_average": os.getloadavg()[0],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
