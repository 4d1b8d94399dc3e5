"""Write result files; each has the form ``{command, commit, date, hardware, figures, detail}``."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, figures: dict[str, float | None], detail: dict[str, Any], path: Path | None = None) -> None:
    """Write ``results/NAME.json`` and print the headline figures. ``figures`` is flat; ``detail`` is free."""
    path = path or RESULTS / f"{name}.json"
    script = Path(sys.argv[0])
    result = {
        "command": " ".join(["python", f"benchmarks/{script.name}", *map(_shown, sys.argv[1:])]),
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "figures": without_nan(figures),
        "detail": without_nan(detail),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    print(json.dumps(figures, indent=1))
    print(f"written to {path}")


def without_nan(value: Any) -> Any:
    """Return ``value`` with None for every nan and infinity, which JSON does not support."""
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(word: str) -> str:
    """Return an argument, ``PATH`` or ``NAME=PATH``, with an absolute path shortened to its last three parts."""
    name, equals, value = word.rpartition("=")
    path = Path(value)
    return f"{name}{equals}{'/'.join(path.parts[1:][-3:])}" if path.is_absolute() else word


def hardware() -> str:
    """Return the processor's name, its vector or matrix instructions (virtual machines hide the name), number of CPUs,
    memory, and the GPU if there is one."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    units = [unit for unit in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if re.search(rf"\b{unit}\b", info)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = " with ".join([names[0] if names else platform.machine(), *units[:1]])
    text = f"{name}, {os.cpu_count()} CPUs, {memory:.0f} GiB"
    try:
        import torch

        if torch.cuda.is_available():
            text += f", {torch.cuda.get_device_name()}"
    except ImportError:
        pass
    return text


def commit() -> str:
    """Return the measured commit, and whether the package differs from it. Where there is only a copy of the files, the
    environment variable BENCHMARK_COMMIT gives it."""
    if given := os.environ.get("BENCHMARK_COMMIT"):
        return given
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "woodshed"], capture_output=True, check=False)
    return head.stdout.strip() + ("" if changed.returncode == 0 else " with changes")
