"""The bytes that packages are made from: from the index or its cache, or kept by the build itself."""

from __future__ import annotations

from pathlib import Path

from .catalogue import Package
from .source import fetch

KEPT_SOURCES = "sources"
"""Folder of a build that keeps the bytes of sources which no index has."""


def fetch_package(package: Package, out: Path, *, cache: Path | None = None) -> Path:
    """The verified archive of a package: what the build in ``out`` keeps itself, else from the index or its cache."""
    kept = out / KEPT_SOURCES if package.kept else None
    return fetch(package.name, package.version, package.file, package.sha256, cache=cache, kept=kept)


def fetch_history(package: Package, out: Path) -> Path:
    """The verified bundle of a package's commits."""
    return fetch(
        package.name, package.version, package.history, package.history_sha256, kept=out / KEPT_SOURCES
    )  # fmt: skip
