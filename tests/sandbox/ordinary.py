"""Running code as a user without any rights, under an interpreter and with a package that such a user can reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from waiting import run_to_end

import woodshed
from woodshed.record.cache import cache_directory
from woodshed.sandbox.backends.gvisor.runsc import Missing, find_runsc
from woodshed.sandbox.backends.microvm.qemu import find_programs

USER = 54321
_CODE = "import os, sys; sys.path.insert(0, sys.argv.pop(1)); exec(sys.argv.pop(1))"


def run_as_ordinary_user(code: str, *arguments: str, machines: bool = False) -> str:
    """What ``code`` prints. ``sys.argv[1]`` is a folder for its state, which it has to leave empty; then ``arguments``.

    ``machines``: it needs QEMU, which is there. Skips the test where no interpreter fits.
    """
    python, user = sys.executable, dict[str, Any]()
    if os.geteuid() == 0:
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or python
        user = {"user": USER, "group": USER, "extra_groups": []}
    check = [python, "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if subprocess.run(check, capture_output=True, text=True, cwd="/", **user).stdout.strip() != "True":
        pytest.skip("no Python 3.11 or newer that an ordinary user can run")
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        package, state = place / "package" / "woodshed", place / "state"
        for folder in ("attacks", "sandbox", "record", "cluster"):
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(woodshed.__file__).parent / folder, package / folder, ignore=skipped)
        shutil.copy(woodshed.__file__, package)
        environment = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "WOODSHED_CACHE": str(place / "cache")}
        try:
            shutil.copy(find_runsc(), place / "runsc")
            environment["WOODSHED_RUNSC"] = str(place / "runsc")
        except Missing:
            pass  # whoever needs it skips
        if machines:
            environment |= _virtual_machines(place)
        state.mkdir()
        subprocess.run(["chmod", "-R", "a+rX", str(package.parent)], check=True)
        (place / "cache").mkdir(exist_ok=True)
        for folder in (place, state, place / "cache"):
            folder.chmod(0o777)
        command = [python, "-I", "-c", _CODE, str(package.parent), code, str(state), *arguments]
        done = run_to_end(command, cwd=Path("/"), env=environment, **user)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(state.iterdir()) == []
        return done.stdout
    finally:
        shutil.rmtree(place)


def _virtual_machines(place: Path) -> dict[str, str]:
    """QEMU and the images made so far where the user can read them; links, as they are large."""
    copy_function = os.link if os.stat(place).st_dev == os.stat(cache_directory()).st_dev else shutil.copy2
    shutil.copytree(find_programs().root, place / "qemu", copy_function=copy_function, symlinks=True)
    images = place / "cache" / "images"
    images.mkdir(parents=True)
    for path in (cache_directory() / "images").glob("[!.]*"):
        copy_function(path, images / path.name)
    for folder in (images.parent, images):
        folder.chmod(0o777)
    return {"WOODSHED_QEMU": str(place / "qemu"), "WOODSHED_CACHE": str(images.parent)}
