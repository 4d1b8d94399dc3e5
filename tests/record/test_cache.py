"""The cache is in a writable folder, and never in one that others may change."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from woodshed.record.cache import cache_directory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; no variable names a cache."""
    for name in ("WOODSHED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_what_is_named_comes_before_the_home_folder(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home/.cache/woodshed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg/woodshed"
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "named/here"))
    assert cache_directory() == tmp_path / "named/here" and (tmp_path / "named/here").is_dir()


@pytest.mark.parametrize("home", ["/proc/no-such-home", "/dev/null"])
def test_without_a_home_it_is_a_folder_of_this_users_own(
    home: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    found = cache_directory()
    assert found == temporary / f"woodshed-cache-{os.geteuid()}" == cache_directory()
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_others_is_refused_with_what_to_do(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    found = cache_directory()
    found.chmod(0o777)
    with pytest.raises(OSError, match=r"belongs to others; set WOODSHED_CACHE"):
        cache_directory()
    found.rmdir()
    found.symlink_to(temporary)
    with pytest.raises(OSError, match=r"belongs to others; set WOODSHED_CACHE"):
        cache_directory()


def test_a_named_folder_that_cannot_be_made_is_named(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WOODSHED_CACHE", "/dev/null/cache")
    with pytest.raises(OSError, match=r"WOODSHED_CACHE names /dev/null/cache, .*; name another folder"):
        cache_directory()
