"""Files of a task for other Harbor tools: an image with the test dependencies, and a script that writes the reward."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.grading.pytest_grader import STRAY, STRAY_SUFFIXES, runner_source
from woodshed.record.task import TaskInfo

from .catalogue import Package, Wheel
from .dependencies import MOUNT, metadata_file

_SCRIPT = """\
#!/bin/sh
# For other Harbor tools; Woodshed's own grader does more.
{services}exec {program} "$(dirname "$0")/{check}"
"""
_SERVICES = 'sh -e "$(dirname "$0")/start.sh" >/tmp/services.log 2>&1 </dev/null || exit 1\n'
_FETCH = f"pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes --target {MOUNT}"


def python_image(package: Package, environment: Mapping[str, str], workdir: str) -> dict[str, bytes]:
    """Files of ``environment/`` besides the workspace; they install the wheels of ``dependency_layers`` by pip."""
    files: dict[str, bytes] = {}
    lines = [f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim"]
    wheels = sorted({w for w in package.below if isinstance(w, Wheel)}, key=lambda w: (w.name, w.file))
    if wheels:
        pinned = "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels)
        files["requirements.txt"] = pinned.encode()
        lines += ["COPY requirements.txt /opt/requirements.txt", f"RUN {_FETCH} -r /opt/requirements.txt"]
    if package.metadata:
        name, data = metadata_file(*package.metadata.split("==", 1))
        files[f"metadata/{name}"] = data
        lines += [f"COPY metadata {MOUNT}"]
    return {"Dockerfile": dockerfile(lines, environment, workdir), **files}


def dockerfile(lines: Sequence[str], environment: Mapping[str, str], workdir: str) -> bytes:
    """A Dockerfile: ``lines``, then the environment variables of the tests and the workspace."""
    end = [f"ENV {name}={_quoted(value)}" for name, value in environment.items()]
    end += [f"WORKDIR {workdir}", f"COPY workspace {workdir}"]
    return ("\n".join([*lines, *end]) + "\n").encode()


def pytest_check(info: TaskInfo, path: Sequence[str], start: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files of ``tests/`` besides the tests. ``path``: entries of ``sys.path``; ``start``: what the agent gets."""
    request = {
        "files": sorted({i.partition("::")[0] for i in required(info)}),
        "ids": required(info),
        "path": list(path),
        "workdir": info.workdir,
        "test_timeout": max(1.0, info.timeout_sec / 3),
        "reverse": False,
        "trace": [],
        "encoder": "",
    }
    return {
        "test.sh": script("python -I", "check.py", services=bool(info.start)),
        **({"start.sh": info.start.encode()} if info.start else {}),
        "check.py": Path(__file__).with_name("harbor_check.py").read_bytes(),
        "runner.py": runner_source().encode(),
        "required.json": required_json(info, start, STRAY, request=request),
    }


def required(info: TaskInfo) -> list[str]:
    return sorted({*info.fail_to_pass, *info.pass_to_pass})


def required_json(info: TaskInfo, start: Mapping[str, bytes], stray: frozenset[str], **more: Any) -> bytes:
    """The request of the check. ``stray``: names of files that are kept only if they are as in ``start``."""
    kept = {n: hashlib.sha256(d).hexdigest() for n, d in start.items() if n.rpartition("/")[2] in stray}
    asked = {
        "workdir": info.workdir,
        "ids": required(info),
        "timeout": info.timeout_sec,
        "stray": sorted(stray),
        "suffixes": list(STRAY_SUFFIXES),
        "kept": kept,
        **more,
    }
    return (json.dumps(asked, indent=1, sort_keys=True) + "\n").encode()


def script(program: str, check: str, *, services: bool = False) -> bytes:
    return _SCRIPT.format(program=program, check=check, services=_SERVICES if services else "").encode()


def _quoted(value: str) -> str:
    for character in '\\"$':
        value = value.replace(character, f"\\{character}")
    return f'"{value}"'
