"""Index entries of wrong types, and files that are not regular files: refused without reading or blocking."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from woodshed.weights.delta import _pack, decode_part
from woodshed.weights.errors import ChainError, TornVersion
from woodshed.weights.follow import Follower
from woodshed.weights.store import FolderStore

GOOD: dict[str, Any] = {
    "name": "a", "dtype": "float32", "shape": [1], "checksum": "", "xor": False, "offset": 0, "bytes": 1,
}  # fmt: skip
WRONG = [
    {"name": 3}, {"name": []}, {"dtype": 5}, {"dtype": "nn"}, {"shape": 4}, {"shape": ["1"]}, {"shape": [-1]},
    {"shape": [1 << 60]}, {"shape": [1 << 47, 1 << 47]}, {"checksum": None}, {"xor": 1}, {"offset": "0"},
    {"offset": -1}, {"offset": True}, {"bytes": 1 << 80}, {"bytes": -1}, {"start": {}, "size": [1]}, {"start": [0]},
    {"start": [1], "size": [1]}, {"start": [0, 0], "size": [1, 1]},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_an_entry_of_wrong_type_is_a_damaged_version(wrong: dict[str, Any]) -> None:
    with pytest.raises(TornVersion, match="part"):
        decode_part(_pack([GOOD | wrong], [b"\0"]), None, where="part")


@pytest.mark.parametrize("entry", [None, 3, "name", [], {}])
def test_an_entry_that_is_no_object_is_a_damaged_version(entry: Any) -> None:
    with pytest.raises(TornVersion, match="part"):
        decode_part(_pack([entry], [b"\0"]), None, where="part")


@pytest.fixture
def odd_chain(tmp_path: Path, odd: str) -> FolderStore:
    """A chain whose version 0 contains odd files; links lead out of it."""
    folder = tmp_path / "chain" / "v000000"
    folder.mkdir(parents=True)
    manifest = folder / "manifest.json"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "manifest.json").write_text("{}")
    if odd == "fifo":
        os.mkfifo(manifest)
    elif odd == "device":
        manifest.symlink_to("/dev/zero")
    elif odd == "file outside":
        manifest.symlink_to(tmp_path / "outside" / "manifest.json")
    elif odd == "socket":
        here = os.getcwd()
        os.chdir(folder)  # a socket's path is short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("manifest.json")
        os.chdir(here)
    elif odd == "folder outside":
        folder.rmdir()
        folder.symlink_to(tmp_path / "outside")
    return FolderStore(tmp_path / "chain", fsync=False)


@pytest.mark.parametrize("odd", ["fifo", "device", "socket", "file outside", "folder outside"])
def test_odd_files_are_refused(odd: str, odd_chain: FolderStore) -> None:
    with pytest.raises(ChainError, match="chain"):
        odd_chain.get("v000000/manifest.json")
    with pytest.raises(ChainError, match="chain"):
        Follower(odd_chain).advance()


def test_a_folder_in_place_of_a_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "v000000" / "manifest.json").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            FolderStore(tmp_path).get("v000000/manifest.json")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("odd", ["folder outside"])
def test_nothing_is_written_or_deleted_through_a_link(odd: str, odd_chain: FolderStore, tmp_path: Path) -> None:
    for write in (odd_chain.put, odd_chain.create):
        with pytest.raises(ChainError, match="v000000: a symbolic link"):
            write("v000000/part", b"x")
    for key in ("v000000/manifest.json", "v000000/"):
        with pytest.raises(ChainError, match="v000000: a symbolic link"):
            odd_chain.delete(key)
    assert os.listdir(tmp_path / "outside") == ["manifest.json"]
