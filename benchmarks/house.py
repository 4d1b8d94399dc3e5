"""Measure the source code: sizes of files, import cycles, imports against the layers; writes results/house.json.

    python benchmarks/house.py [--suite-minutes 17.5]

The test suite is not run here: give its minutes, as measured on an idle machine, with ``--suite-minutes``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import median

from result import write_result

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "woodshed"
sys.path.insert(0, str(ROOT))

import woodshed  # noqa: E402
from tests.module_graph import circles, folders_of, module_graph  # noqa: E402  (the suite checks the same graph)

_WINDOW = 6
"""Number of consecutive lines that two files must share to count as duplicates."""


def upward_imports() -> int:
    """Return the number of imports that import-linter refuses."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    found = len(re.findall(r"^- woodshed\S* -> ", done.stdout, re.M))
    if (done.returncode == 0) != (found == 0):
        raise SystemExit(
            f"lint-imports ended with {done.returncode} and named {found} imports:\n{done.stdout}{done.stderr}"
        )
    return found


def duplicated_pairs(files: list[Path]) -> list[tuple[str, str]]:
    """Return the pairs of files that share ``_WINDOW`` consecutive lines, ignoring imports, comments and lines of up to
    three characters."""
    seen: dict[tuple[str, ...], set[str]] = {}
    for file in files:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
        lines = [line for line in lines if len(line) > 3 and not line.startswith(("import ", "from ", "#"))]
        for at in range(len(lines) - _WINDOW + 1):
            seen.setdefault(tuple(lines[at : at + _WINDOW]), set()).add(str(file.relative_to(ROOT)))
    return sorted({pair for names in seen.values() if len(names) > 1 for pair in combinations(sorted(names), 2)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite-minutes", type=float, default=None, help="of an idle run of `make test`")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/house.json")
    arguments = parser.parse_args()
    files = [f for f in sorted(PACKAGE.rglob("*.py")) if f.read_text("utf-8").strip()]
    lengths = {str(f.relative_to(ROOT)): len(f.read_text("utf-8").splitlines()) for f in files}
    graph = module_graph("woodshed")
    pairs = duplicated_pairs(files)
    figures = {
        "files": len(files),
        "median_lines": median(lengths.values()),
        "max_lines": max(lengths.values()),
        "circles": len(circles(graph)),
        "circles_of_folders": len(circles(folders_of(graph))),
        "upward_imports": upward_imports(),
        "public_names": len(woodshed.__all__),
        "fmt_skips": sum(f.read_text("utf-8").count("# fmt: skip") for f in files),
        "duplicates_pairs": len(pairs),
        "suite_minutes": arguments.suite_minutes,
    }
    share: Counter[str] = Counter()
    for name, length in lengths.items():
        share[name.split("/")[1]] += length
    detail = {
        "lines_by_folder": dict(share.most_common()),
        "longest": dict(sorted(lengths.items(), key=lambda item: -item[1])[:10]),
        "under_60_lines": sum(length < 60 for length in lengths.values()),
        "circles_of_folders": circles(folders_of(graph)),
        "duplicates": pairs,
    }
    write_result("house", figures, detail, arguments.out)


if __name__ == "__main__":
    main()
