"""Fetches and unpacks Debian packages without root and without installing anything: apt with folders of its own."""

from __future__ import annotations

import glob
import hashlib
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.sandbox.protocol import SandboxError

ESSENTIAL = "?essential"
"""apt pattern for the packages that every Debian system has."""

_FETCH_SECONDS = 1800.0
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+~:-]+)?|\?essential")


@dataclass(frozen=True)
class Package:
    """One unpacked archive. ``sha256``: hex digest of the ``.deb`` file."""

    name: str
    version: str
    sha256: str


def host_suite() -> str:
    """Return the code name of this machine's Debian or Ubuntu release. Raises SandboxError if it runs neither."""
    try:
        rows = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    except OSError:
        rows = {}
    suite = rows.get("VERSION_CODENAME", "").strip('"')
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing or not suite:
        raise SandboxError(f"a root from Debian packages needs a Debian or Ubuntu machine: no {missing or 'release'}")
    return suite


def check_names(packages: Sequence[str]) -> None:
    """Raise SandboxError for anything that is not a package name, such as an option of apt."""
    for name in packages:
        if not _NAME.fullmatch(name):
            raise SandboxError(f"{name!r} is not the name of a Debian package (NAME or NAME=VERSION)")


def unpack(packages: Sequence[str], suite: str, folder: Path, work: Path, say: Callable[[str], None]) -> list[Package]:
    """Unpack ``packages`` of ``suite`` and their dependencies into ``folder``; return what was unpacked, by name.

    No maintainer script runs. ``work`` is an empty folder for lists and archives. Raises SandboxError with apt's error.
    """
    check_names(packages)
    options = _options(work, suite)
    say(f"fetching the package lists of {suite}")
    _apt([*options, "update"], f"the package lists of {suite} cannot be fetched")
    say(f"fetching {len(packages)} packages and what they depend on")
    arguments = ["install", "--download-only", "--no-install-recommends", "--yes", "--", *packages]
    _apt([*options, *arguments], f"these packages of {suite} cannot be fetched: {' '.join(packages)}")
    archives = sorted((work / "cache/archives").glob("*.deb"))
    found = []
    for number, archive in enumerate(archives, 1):
        say(f"unpacking {number} of {len(archives)}: {archive.name.partition('_')[0]}")
        fields = _run(["dpkg-deb", "--field", str(archive), "Package", "Version"]).splitlines()
        values = dict(line.split(": ", 1) for line in fields)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        found.append(Package(values["Package"], values["Version"], digest))
        # With tar, whose option keeps the link /bin -> usr/bin; dpkg-deb would replace the link.
        script = 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --no-same-owner'
        _run(["bash", "-o", "pipefail", "-c", script, "unpack", str(archive), str(folder)])
        archive.unlink()
    return sorted(found, key=lambda p: p.name)


def _options(work: Path, suite: str) -> list[str]:
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    _write_sources(work / "parts", suite)
    user = pwd.getpwuid(os.geteuid()).pw_name
    values = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": work / "parts",
        "Dir::Etc::Parts": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Dir::State::status": work / "status",
        "APT::Sandbox::User": user,
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "APT::Get::AllowUnauthenticated": "false",
        "Dpkg::Use-Pty": "0",
    }
    return ["-qq", *(word for key, value in values.items() for word in ("-o", f"{key}={value}"))]


def _write_sources(parts: Path, suite: str) -> None:
    """Write apt sources for ``suite``, with this machine's own mirrors and keyrings."""
    same = suite == host_suite()
    written = 0
    for path in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
        stanzas = re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", Path(path).read_text()))
        kept = [s for s in stanzas if "Types:" in s and _is_distribution(s, same)]
        if not same:
            kept = [re.sub(r"(?m)^Suites:.*$", f"Suites: {suite}", s) for s in kept]
        if kept:
            (parts / f"{written}.sources").write_text("\n\n".join(s.strip() for s in kept) + "\n")
            written += 1
    lines = []
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*.list"))]:
        for line in Path(path).read_text().splitlines() if os.path.isfile(path) else ():
            found = re.fullmatch(r"deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line.strip())
            if found and _is_distribution(line, same):
                options, place, own, components = found.groups()
                lines.append(f"deb {options or ''}{place} {own if same else suite} {components if same else 'main'}")
    if lines:
        (parts / f"{written}.list").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    if not written and not lines:
        raise SandboxError("no package source of Debian or Ubuntu in /etc/apt/sources.list or sources.list.d")


def _is_distribution(source: str, same: bool) -> bool:
    """Return whether a source is the distribution's own; security updates count only for the ``same`` suite."""
    place = re.search(r"https?://\S+|file:\S+|mirror\S+", source)
    return place is not None and bool(re.search("debian|ubuntu", place[0])) and (same or "security" not in source)


def _apt(arguments: list[str], failure: str) -> None:
    try:
        _run(["apt-get", *arguments])
    except SandboxError as error:
        raise SandboxError(f"{failure}: {error}") from None


def _run(command: list[str]) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    environment |= {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, env=environment)
    if done.returncode:
        text = " ".join((done.stderr.strip() or done.stdout.strip())[-1500:].split())
        raise SandboxError(f"{command[0]} failed: {text or done.returncode}")
    return done.stdout
