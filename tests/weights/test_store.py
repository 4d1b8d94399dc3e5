"""The contract of a store, for a folder and a bucket."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.weights.manifest import versions
from woodshed.weights.store import FolderStore, Store, open_store


def test_objects_are_written_listed_read_and_deleted(store: Store) -> None:
    assert store.listing() == []
    big = os.urandom(12 << 20)  # Several parts of a multipart upload.
    for key, data in (("v000002/b", b"2b"), ("v000001/a", b""), ("v000002/a", big), ("v000010/a", b"x")):
        store.put(key, data)
    assert store.listing() == ["v000001/a", "v000002/a", "v000002/b", "v000010/a"]
    assert store.listing(after="v000002/a") == ["v000002/b", "v000010/a"]
    assert store.listing(after="v000002/~") == ["v000010/a"]
    assert store.get("v000002/a") == big and store.get("v000001/a") == b""
    store.put("v000002/b", b"again")
    assert store.get("v000002/b") == b"again"
    for missing in ("v000003/a", "v000001/a/b", "v000001"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            store.get(missing)
    store.delete("v000002/")
    store.delete("v000002/")
    store.delete("v000001/a")
    store.delete("v000001/a")
    assert store.listing() == ["v000010/a"] and versions(store) == []


def test_a_long_listing_is_whole(s3, tmp_path: Path) -> None:
    store = open_store(f"s3://woodshed/{tmp_path.name}")
    keys = [f"v{n // 10:06d}/{n % 10}" for n in range(45)]  # The server's pages have ten.
    for key in keys:
        store.put(key, b"")
    assert store.listing() == keys and store.listing(after=keys[24]) == keys[25:]


def test_files_that_are_being_written_are_not_there(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("v000001/manifest.json", b"{}")
    (tmp_path / "v000001" / ".delta.bin.77.tmp").write_bytes(b"half")
    (tmp_path / "note.txt").write_text("of a person")
    assert store.listing() == ["v000001/manifest.json"]


def test_without_the_extra_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from woodshed.weights.store import open_store\n"
        "try: open_store('s3://bucket/run')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "ChainError s3://bucket/run: a weight chain in a bucket needs the extra: pip install 'woodshed[s3]'"
    )
