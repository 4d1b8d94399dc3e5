"""An interpreter that runs in any image: the host's, with its own loader and libraries, in one read-only folder.

So the box's first process runs even in images without Python or with another C library.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from woodshed.record.cache import cache_directory
from woodshed.record.walk import all_below
from woodshed.sandbox.host.payload import PLACE
from woodshed.sandbox.protocol import Unsupported

INSIDE = f"{PLACE}/runtime"
_LOADER = [f"{INSIDE}/ld.so", "--library-path", f"{INSIDE}/lib"]
PYTHON = [*_LOADER, f"{INSIDE}/python/bin/python3"]
SETPRIV = [*_LOADER, f"{INSIDE}/bin/setpriv"]
_LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "_tkinter*",
)


def runtime(cache: Path | None = None) -> Path:
    """Return the interpreter's folder, made once per interpreter. Raises Unsupported if the host lacks a part of it."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if setpriv is None or shutil.which("ldd") is None:
        raise Unsupported("docker: this machine has no setpriv (package util-linux) or no ldd")
    key = hashlib.sha256(f"{sys.version} {executable} {os.stat(executable).st_mtime_ns}".encode()).hexdigest()[:16]
    place = (cache or cache_directory()) / "runtimes" / key
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        _fill(work, executable, setpriv)
        work.chmod(0o755)
        try:
            work.rename(place)
        except OSError:
            if not place.is_dir():  # else another process made it meanwhile
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def _fill(work: Path, executable: str, setpriv: str) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("lib", "bin", "python/bin"):
        (work / name).mkdir(parents=True)
    shutil.copy(executable, work / "python/bin/python3")
    shutil.copy(setpriv, work / "bin/setpriv")
    target = work / "python/lib" / version
    left_out = shutil.ignore_patterns(*_LEFT_OUT)
    for place in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")):
        shutil.copytree(place, target, ignore=left_out, dirs_exist_ok=True)
    programs = [Path(executable), Path(setpriv), *sorted((target / "lib-dynload").glob("*.so"))]
    for name, path in _libraries(programs).items():
        shutil.copy(path, work / "ld.so" if name.startswith("ld-") else work / "lib" / name)
    for each in (work, *all_below(work)):  # the box's user must be able to read it, whoever owns it
        if not each.is_symlink():
            each.chmod(0o755 if each.is_dir() or each.stat().st_mode & 0o100 else 0o644)


def _libraries(programs: list[Path]) -> dict[str, str]:
    """Find the shared libraries that programs need, and the loader: name -> path. Missing ones are skipped."""
    found: dict[str, str] = {}
    for program in programs:
        text = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for name, path in re.findall(r"^\s*(?:(\S+) => )?(/\S+) \(0x", text, re.MULTILINE):
            found[os.path.basename(path if path.rpartition("/")[2].startswith("ld-") else name or path)] = path
    return found
