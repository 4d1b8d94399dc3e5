"""Boxes run the interpreter of this process, by whatever path it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.sandbox.backends.namespace.backend import probe_namespace

_SHOW = "import sys; print(sys.version.split()[0], sys.prefix, sys.executable)"
_BOX = f"""
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.protocol import BoxSpec

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]))
    try:
        box = await backend.create(BoxSpec())
        print((await box.exec(["python3", "-c", {_SHOW!r}])).stdout.decode(), end="")
        print((await box.exec_python({_SHOW!r})).stdout.decode(), end="")
        late = await box.exec_python("import smtplib, sys; print(sys.prefix, smtplib.__file__)")
        print((late.stdout + late.stderr).decode(), end="")
    finally:
        await backend.close()

asyncio.run(main())
"""


def test_an_interpreter_behind_a_link_is_the_one_of_commands_and_of_python_code(tmp_path: Path) -> None:
    """As installers of interpreters keep them: a folder named 3.12 that leads to 3.12.1."""
    probe = probe_namespace(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    real = os.path.realpath(sys.base_prefix)
    (tmp_path / "linked").symlink_to(real)
    python = tmp_path / "linked/bin" / Path(os.path.realpath(sys.executable)).name
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [python, "-c", _BOX, str(tmp_path / "state")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    command, code, late = done.stdout.splitlines()
    version = sys.version.split()[0]
    assert command.split()[:2] == [version, real] and code.split()[:2] == [version, real]
    assert os.path.realpath(code.split()[2]) == os.path.realpath(sys.executable)
    assert late.startswith(f"{real} {real}/"), late
