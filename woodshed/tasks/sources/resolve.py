"""Resolve requirements to pinned pure-Python wheels with pip, which downloads metadata and runs none of their code.

Only ``py3-none-any`` wheels are accepted, so no build backend runs and no compiled code is used.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import fetch

from .requirements import Requirement, canonical

_UNREACHABLE = re.compile(r"(?i)connection|timed out|name resolution|retries|proxy|certificate|unreachable")


class Contradiction(PackageError):
    """Each requirement can be resolved alone, but not all of them together."""


@dataclass(frozen=True)
class Resolved:
    """``wheels``: what to install, sorted by name. ``left_out``: requirement -> why it could not be resolved."""

    wheels: tuple[Wheel, ...]
    left_out: dict[str, str]


def resolve(requirements: Sequence[Requirement], base: Sequence[Wheel], *, without: Sequence[str]) -> Resolved:
    """Wheels for ``requirements`` and their dependencies, compatible with the pinned wheels ``base`` and without them.

    A requirement without a pure-Python wheel is left out. ``without``: projects that are never installed, namely those
    under test, since an installed copy would hold the answers. Raises PackageError if pip or the index cannot be used,
    Contradiction if the requirements cannot be resolved together.
    """
    pinned = {canonical(w.name) for w in base}
    barred = {*pinned, *map(canonical, without)}
    wanted = [r for r in requirements if r.name not in barred]
    left_out: dict[str, str] = {}
    if not wanted:
        return Resolved((), left_out)
    report = _pip(wanted, base)
    if isinstance(report, str):
        possible = []
        for requirement in wanted:
            alone = _pip([requirement], base)
            if isinstance(alone, str):
                left_out[requirement.text] = alone
            else:
                possible.append(requirement)
        report = _pip(possible, base) if possible else []
        if isinstance(report, str):
            raise Contradiction(f"its requirements contradict each other: {report}")
    wheels = [w for w in report if canonical(w.name) not in barred]
    return Resolved(tuple(sorted(wheels, key=lambda w: canonical(w.name))), left_out)


def check_import_names(wheel: Wheel, path: Path, roots: Sequence[str]) -> None:
    """Raise PackageError if a wheel holds a module named like one of ``roots``: it would shadow the workspace."""
    names = {Path(root).name.removesuffix(".py") for root in roots}
    if clash := names & _top_names(path):
        raise PackageError(
            f"its tests need {wheel.name} {wheel.version}, which has a copy of {sorted(clash)[0]!r}: "
            "every task would hold its answer"
        )


def import_names(wheels: Sequence[Wheel], *, cache: Path | None = None) -> set[str]:
    """Top-level names of the modules and packages in wheels."""
    paths = (fetch(w.name, w.version, w.file, w.sha256, cache=cache) for w in wheels)
    return {name for path in paths for name in _top_names(path)}


def _top_names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {n.partition("/")[0].removesuffix(".py") for n in archive.namelist()}


def _pip(requirements: Sequence[Requirement], base: Sequence[Wheel]) -> list[Wheel] | str:
    """The wheels that pip would install, or why it cannot."""
    with tempfile.TemporaryDirectory(prefix="woodshed-pip-") as scratch:
        pins, report = Path(scratch) / "pins.txt", Path(scratch) / "report.json"
        pins.write_text("".join(f"{w.name}=={w.version}\n" for w in base))
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--quiet",
            "--ignore-installed",
            "--no-input",
            "--disable-pip-version-check",
            "--retries=1",
            "--only-binary=:all:",
            "--platform=any",
            "--implementation=py",
            "--abi=none",
            f"--python-version={version}",
            f"--target={scratch}/target",
            f"--report={report}",
            f"--constraint={pins}",
            "--",
            *(r.text for r in requirements),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return "pip took longer than 15 minutes"
        if "No module named pip" in done.stderr:
            raise PackageError(
                "pip is not installed in this environment, but is needed to resolve requirements; install it"
            )
        if done.returncode:
            return _reason(done.stderr)
        return [_wheel(entry) for entry in json.loads(report.read_text("utf-8"))["install"]]


def _wheel(entry: dict[str, dict[str, dict[str, dict[str, str]]]]) -> Wheel:
    info, metadata = entry["download_info"], entry["metadata"]
    file = unquote(urlsplit(str(info["url"])).path.rpartition("/")[2])
    digest = info.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    if len(digest) != 64:
        raise PackageError(f"{file}: the package index states no sha256 for it")
    return Wheel(str(metadata["name"]), str(metadata["version"]), file, digest)


def _reason(text: str) -> str:
    lines = [line.removeprefix("ERROR:").strip() for line in text.splitlines() if "ERROR" in line]
    said = re.sub(r"(?<=//)[^/@\s]*@", "", lines[-1] if lines else text.strip()[-200:])
    if _UNREACHABLE.search(text):
        raise PackageError(f"the package index cannot be reached ({said}); connect, or set PIP_INDEX_URL")
    if "No matching distribution" in said:
        return "the index has no pure-Python wheel of it for this Python"
    return said
