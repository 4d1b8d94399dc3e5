"""Write every committed result into docs/measured.md: ``python benchmarks/table.py``."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "measured.md"
MARK = "<!-- below this line: benchmarks/table.py -->\n"


def main() -> None:
    head = DOCUMENT.read_text().partition(MARK)[0]
    parts = [section(path) for path in sorted((HERE / "results").glob("*.json"))]
    DOCUMENT.write_text(head + MARK + "".join(parts))


def section(path: Path) -> str:
    result = json.loads(path.read_text())
    lines = [
        f"\n## {path.stem}\n",
        f"`{result['command']}` at {result['commit']}, {result['date']}; {result['hardware']}\n",
        "| figure | value |\n|---|---|",
        *(f"| {name} | {number(value)} |" for name, value in result["figures"].items()),
    ]
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
