"""Files that a recipe's ``harness.program`` needs in its box: Python wheels or a folder, as a layer at
``/opt/harness``."""

from __future__ import annotations

import compileall
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

from woodshed.harness.settings import ProgramSettings
from woodshed.record.atomic import write_whole
from woodshed.rollout.program import PLACE
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError

_START = f"#!/usr/bin/env python3\nimport sys\nsys.path.insert(0, {PLACE!r})\n"
_INTERPRETER = re.compile(rb"\A#![^\n]*python[^\n]*\n|\A#!/bin/sh\n'''exec' [^\n]*\n' '''\n")


class ProgramError(Exception):
    """The program cannot be put into boxes; the message names the field."""


def program_layers(program: ProgramSettings, layers: LayerStore) -> tuple[Path, ...]:
    """Return the layers of a program, lowest first. Raises ProgramError.

    Packages are fetched once per set of requirements, so that all runs with these requirements have the same program.
    """
    if program.folder is not None:
        return (_of_folder(program.folder, layers),)
    return (_of_packages(program.packages, layers),) if program.packages else ()


def _of_folder(folder: Path, layers: LayerStore) -> Path:
    if not folder.is_dir():
        raise ProgramError(f"harness.program.folder: {folder} is no folder")

    def fill(root: Path) -> None:
        shutil.copytree(folder, root / PLACE.lstrip("/"), symlinks=True)

    return layers.path(layers.add("harness", fill))


def _asked(package: str) -> str:
    """Return the cache key of a requirement: the digest of a local wheel's content, else the requirement itself."""
    path = Path(package)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else package


def _of_packages(packages: tuple[str, ...], layers: LayerStore) -> Path:
    asked = hashlib.sha256("\n".join(map(_asked, sorted(packages))).encode()).hexdigest()[:16]
    note = layers.root / f".harness-{asked}-{sys.implementation.cache_tag}"
    try:
        return layers.path(note.read_text("utf-8"))
    except (OSError, SandboxError):
        pass

    def fill(root: Path) -> None:
        target = root / PLACE.lstrip("/")
        # Only wheels: pip unpacks them without running any of their code.
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--no-compile",
            f"--target={target}",
            "--",
            *packages,
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            lines = [line.removeprefix("ERROR:").strip() for line in done.stderr.splitlines() if "ERROR" in line]
            said = lines[-1] if lines else done.stderr.strip()[-300:]
            raise ProgramError(f"harness.program.packages: pip cannot install {', '.join(packages)}: {said}")
        for script in (target / "bin").glob("*"):
            if script.is_file():
                script.write_bytes(_INTERPRETER.sub(_START.encode(), script.read_bytes(), count=1))
                script.chmod(0o755)
        # Hash-based .pyc files have no time stamp, so equal packages give equal bytes. Unchecked: layers are read-only.
        mode = PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(str(target), ddir=PLACE, quiet=2, workers=1, invalidation_mode=mode)

    name = layers.add("harness", fill)
    write_whole(note, name)
    return layers.path(name)
