"""Grade a task for Harbor tools other than Woodshed: run by its ``tests/test.sh``, writes whether all tests passed.

Standalone source (copied into the ``tests`` folder of tasks): it imports nothing of Woodshed. ``harbor.py`` writes
``required.json``; ``runner.py`` is the program that Woodshed's grader runs tests with.
"""

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REWARD = Path("/logs/verifier/reward.txt")


def main() -> None:
    asked = json.loads((HERE / "required.json").read_bytes())
    workdir = Path(asked["workdir"])
    REWARD.parent.mkdir(parents=True, exist_ok=True)
    REWARD.write_text("0\n")  # whatever goes wrong from here on
    clean(workdir, asked)
    shutil.copytree(HERE / "workspace", workdir, dirs_exist_ok=True)
    status = run(asked)
    missed = [test for test in asked["ids"] if status.get(test) != "passed"]
    for test in missed:
        print(f"{test}: {status.get(test, 'missing')}")
    print(f"{len(asked['ids']) - len(missed)} of {len(asked['ids'])} required tests passed")
    REWARD.write_text("0\n" if missed else "1\n")


def clean(workdir: Path, asked: dict[str, Any]) -> None:
    """Remove links and files that would configure the run or the interpreter, unless they are as the task began."""
    names, suffixes, kept = frozenset(asked["stray"]), tuple(asked["suffixes"]), asked["kept"]
    for folder, folders, files in os.walk(workdir):
        for name in (*folders, *files):
            path = Path(folder, name)
            stray = name in files and (name in names or name.endswith(suffixes))
            if path.is_symlink() or (stray and kept.get(path.relative_to(workdir).as_posix()) != digest(path)):
                path.unlink()


def digest(path: Path) -> str:
    """sha256 of a file; empty for anything else, since reading a pipe might never end."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def run(asked: dict[str, Any]) -> dict[str, str]:
    """Test -> status, as the runner reports them; empty if it did not run to its end."""
    nonce = secrets.token_hex(16)
    command = [sys.executable, "-I", "-B", "-c", (HERE / "runner.py").read_text("utf-8")]
    request = json.dumps({**asked["request"], "nonce": nonce}).encode()
    try:
        done = subprocess.run(
            command, input=request, stdout=subprocess.PIPE, cwd=asked["workdir"], timeout=asked["timeout"]
        )
    except subprocess.TimeoutExpired:
        print(f"the tests take longer than {asked['timeout']:g} s")
        return {}
    status: dict[str, str] = {}
    for line in done.stdout.split(b"\n"):
        if not line.startswith(nonce.encode() + b" "):
            continue
        record = json.loads(line.partition(b" ")[2])
        if "end" in record:
            return status if record["end"] == done.returncode else {}
        if "test" in record and status.get(record["test"], "passed") == "passed":
            status[record["test"]] = record["status"]
    print(f"the run ended early with status {done.returncode}")
    return {}


if __name__ == "__main__":
    main()
