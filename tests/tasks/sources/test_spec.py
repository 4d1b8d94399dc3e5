"""How sources are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.spec import distinct_names, parse_source

from . import repos


@pytest.mark.parametrize(
    ("text", "kind", "place", "version", "name"),
    [
        ("pypi:Text-Tools==1.0.post1", "pypi", "Text-Tools", "1.0.post1", "text-tools"),
        (
            "https://example.invalid/team/Nice_Tool.git",
            "git",
            "https://example.invalid/team/Nice_Tool.git",
            "",
            "nice-tool",
        ),
        ("https://example.invalid/tool@abc123", "git", "https://example.invalid/tool", "abc123", "tool"),
        ("ssh://git@example.invalid/a/tool@v1", "git", "ssh://git@example.invalid/a/tool", "v1", "tool"),
        ("git@example.invalid:a/tool.git", "git", "git@example.invalid:a/tool.git", "", "tool"),
    ],
)
def test_sources(text: str, kind: str, place: str, version: str, name: str) -> None:
    spec = parse_source(text)
    assert (spec.kind, spec.place, spec.version, spec.name) == (kind, place, version, name)


def test_folders_and_repositories(tmp_path: Path) -> None:
    plain, repository = tmp_path / "plain", tmp_path / "a@b"
    repos.write(plain, {"a.py": b""})
    commit = repos.repository(repository, {"a.py": b""})
    assert parse_source(str(plain)).kind == "folder"
    assert parse_source(str(repository)).kind == "git"  # its own name holds an @
    spec = parse_source(f"{repository}@{commit}")
    assert (spec.place, spec.version, spec.origin) == (str(repository), commit, f"{repository}@{commit}")
    with pytest.raises(PackageError, match=r"is not a git repository, so it has no commit 'abc'"):
        parse_source(f"{plain}@abc")


def test_credentials_are_not_recorded() -> None:
    assert parse_source("https://me:secret@example.invalid/tool").origin == "https://example.invalid/tool"


@pytest.mark.parametrize("text", ["pypi:toolz", "pypi:toolz>=1", "pypi:--index-url=x==1", "no/such/folder", "-x", ""])
def test_mistakes(text: str) -> None:
    with pytest.raises(PackageError, match=r"pypi:NAME==VERSION"):
        parse_source(text)


def test_equal_names_get_numbers() -> None:
    specs = [parse_source(f"https://example.invalid/{owner}/tool") for owner in "abc"]
    assert distinct_names(specs, ["tool-2"]) == ["tool", "tool-3", "tool-4"]
