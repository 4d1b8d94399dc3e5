"""The wheel is whole: outside of the checkout it has the code that boxes run, the recipes and the data."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_wheel_has_all_that_the_checkout_has_and_runs_outside_of_it(tmp_path: Path) -> None:
    source = tmp_path / "with spaces"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "woodshed", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    built = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    installed = tmp_path / "installed"
    with zipfile.ZipFile(tmp_path / built.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(installed)
    assert [name for name in names if name.startswith("woodshed/") and not (installed / name).is_file()] == []
    assert list(installed.glob("*.dist-info/licenses/LICENSE"))
    shown = subprocess.run(
        [sys.executable, "-P", "-c", "from woodshed.cli.main import app; app()", "recipe", "smoke"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert shown.stdout == (ROOT / "woodshed/recipes/smoke.toml").read_text(), shown.stderr
