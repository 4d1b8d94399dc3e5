"""pytest plugins: which installed ones tests may load, and which one a failure needs.

Grading loads no plugin by itself: a plugin is loaded only if its wheel is locked and its entry point is listed.
"""

from __future__ import annotations

import configparser
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.source import fetch
from woodshed.tasks.sources.requirements import canonical

# Plugins that change how tests run or what is reported, and that no test needs to run.
_NEVER = re.compile(
    r"pytest-(cov|xdist|randomly|random-order|sugar|html|metadata|rerunfailures|repeat|timeout|instafail|forked|watch|"
    r"black|flake8|mypy|pylint|ruff|isort|benchmark|profiling|memray|codspeed|github-actions-annotate-failures)|"
    r"coverage|hypothesis|typeguard|nbval|ipython"
)
_FIXTURES = {
    "mocker": "pytest-mock", "httpx_mock": "pytest-httpx", "requests_mock": "requests-mock", "respx_mock": "respx",
    "datadir": "pytest-datadir", "shared_datadir": "pytest-datadir", "freezer": "pytest-freezer",
    "data_regression": "pytest-regressions", "file_regression": "pytest-regressions", "fs": "pyfakefs",
    "httpserver": "pytest-httpserver", "snapshot": "syrupy", "faker": "faker", "anyio_backend": "anyio",
    "event_loop": "pytest-asyncio", "aiohttp_client": "pytest-aiohttp", "time_machine": "time-machine",
    "celery_app": "pytest-celery", "image_regression": "pytest-regressions",
}  # fmt: skip
_LOOPS = ("pytest-asyncio", "anyio", "pytest-trio", "pytest-aiohttp")


def wanted_plugins(text: str, stated: Iterable[str]) -> list[str]:
    """Distributions that provide what pytest reports as missing: fixtures, or support for coroutines."""
    found = [_FIXTURES[name] for name in re.findall(r"fixture '(\w+)' not found", text) if name in _FIXTURES]
    if "async def functions are not natively supported" in text:
        have = [name for name in _LOOPS if name in set(stated)]
        found += have[:1] or ["pytest-asyncio"]
    return list(dict.fromkeys(found))


def useful_plugin(name: str) -> bool:
    """Return whether a distribution is a pytest plugin that tests may need."""
    name = canonical(name)
    known = {*_FIXTURES.values(), *_LOOPS}
    return (name.startswith("pytest-") or name in known) and not _NEVER.fullmatch(name)


def entry_points(wheels: Iterable[Wheel], *, cache: Path | None = None) -> tuple[str, ...]:
    """Names with which ``pytest -p`` loads the plugins of locked wheels, read from their metadata."""
    found: list[str] = []
    for wheel in wheels:
        if _NEVER.fullmatch(canonical(wheel.name)):
            continue
        path = fetch(wheel.name, wheel.version, wheel.file, wheel.sha256, cache=cache)
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt") and n.count("/") == 1]
            for name in names:
                found += _pytest11(archive.read(name).decode("utf-8", "replace"))
    return tuple(sorted(set(found)))


def _pytest11(text: str) -> list[str]:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    names = parser.options("pytest11") if parser.has_section("pytest11") else []
    return [name for name in names if re.fullmatch(r"[\w.-]+", name) and not name.startswith(("-", "no:"))]
