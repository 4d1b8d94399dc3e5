"""Index entries of wrong types, and files that are no regular files: refused, neither read nor waited for."""

import os
from pathlib import Path
from typing import Any

import pytest

from woodshed.weights.delta import _pack, decode_part
from woodshed.weights.errors import ChainError, TornVersion
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


@pytest.mark.parametrize("odd", ["fifo", "device", "folder"])
def test_odd_files_are_refused(odd: str, tmp_path: Path) -> None:
    chain, key = tmp_path / "chain", "v000000/manifest.json"
    (chain / "v000000").mkdir(parents=True)
    if odd == "fifo":
        os.mkfifo(chain / key)
    elif odd == "device":
        (chain / key).symlink_to("/dev/zero")
    else:
        (chain / "v000000").rename(tmp_path / "outside")
        (tmp_path / "outside" / "manifest.json").write_text("{}")
        (chain / "v000000").symlink_to(tmp_path / "outside")
    with pytest.raises(ChainError, match="chain"):
        FolderStore(chain).get(key)
