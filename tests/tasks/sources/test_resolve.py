"""Requirements become pinned wheels, by the real pip on a file index."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.requirements import Requirement, parse_requirement
from woodshed.tasks.sources.resolve import check_import_names, resolve

from . import repos

BASE = [Wheel("runner", "1.0", "runner-1.0-py3-none-any.whl", "0" * 64)]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "simple").mkdir()
    for key, value in {
        "PIP_INDEX_URL": f"file://{tmp_path}/simple",
        "PIP_FIND_LINKS": "",
        "PIP_EXTRA_INDEX_URL": "",
    }.items():
        monkeypatch.setenv(key, value)
    return tmp_path


def wanted(*lines: str) -> list[Requirement]:
    found = [parse_requirement(line, "here") for line in lines]
    return [r for r in found if r is not None]


def test_what_is_needed_is_pinned_and_the_rest_is_named(index: Path) -> None:
    repos.wheel(index, "alpha", "1.0", {"alpha.py": ""})
    repos.wheel(index, "alpha", "2.0", {"alpha.py": ""}, needs="beta")
    repos.wheel(index, "beta", "0.5", {"beta.py": ""})
    repos.wheel(index, "fast", "1.0", {"fast.so": ""}, tag="cp311-cp311-linux_x86_64")
    found = resolve(wanted("alpha>1", "fast", "runner", "me"), BASE, without=["Me"])
    assert [(w.name, w.version) for w in found.wheels] == [("alpha", "2.0"), ("beta", "0.5")]
    file = index / "simple" / "beta" / found.wheels[1].file
    assert found.wheels[1].sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert list(found.left_out) == ["fast"] and "pure-Python" in found.left_out["fast"]
    assert resolve(wanted("runner"), BASE, without=[]).wheels == ()


def test_a_copy_of_the_project_is_never_installed(index: Path) -> None:
    repos.wheel(index, "alpha", "1.0", {"alpha.py": ""}, needs="me")
    repos.wheel(index, "me", "1.0", {"me/__init__.py": ""})
    found = resolve(wanted("alpha"), BASE, without=["me"])
    assert [w.name for w in found.wheels] == ["alpha"]
    repos.wheel(index, "vendor", "1.0", {"me/__init__.py": ""})
    path = next((index / "simple" / "vendor").glob("*.whl"))
    with pytest.raises(PackageError, match=r"vendor 1.0, which has a copy of 'me'"):
        check_import_names(Wheel("vendor", "1.0", path.name, "0" * 64), path, ["src/me"])


def test_without_a_network_nothing_is_left_out_silently(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        with pytest.raises(PackageError, match=r"index cannot be reached.*set PIP_INDEX_URL"):
            resolve(wanted("alpha"), BASE, without=[])
