"""Every script in ``benchmarks/`` finds what it imports, of the tests' helpers too, when it is started by its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
EACH_IN_A_FORK = """
import os, runpy, sys, traceback
import pytest, torch, torch._dynamo, transformers  # once for all, and most of the package
import woodshed.attacks.escapes.battery, woodshed.cli.main, woodshed.engine.local, woodshed.gateway.serve
import woodshed.stages.demonstrations, woodshed.tasks.generators.packages.build
import woodshed.train.worker, woodshed.view.report
folder, failed = sys.argv[1], []
for name in sys.argv[2:]:
    sys.stdout.flush()
    if os.fork() == 0:
        sys.path[0], sys.argv = folder, [f"{folder}/{name}.py"]
        try:
            runpy.run_path(sys.argv[0], run_name="imported")
        except BaseException:
            traceback.print_exc(limit=-1)
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        failed.append(name)
sys.exit(", ".join(failed) or 0)
"""


def test_every_script_finds_what_it_imports() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_"))
    assert len(names) > 50
    # Not in the checkout, which an empty entry of sys.path would make importable.
    done = subprocess.run(
        [sys.executable, "-c", EACH_IN_A_FORK, str(BENCHMARKS), *names], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
