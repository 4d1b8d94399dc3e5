"""A folder that cannot be read is an error and is never taken for an empty one."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from limits import soft_limit

from woodshed.harness.terminal import FolderError
from woodshed.harness.terminal import read_folder as folder_to_work_on
from woodshed.record.walk import all_below
from woodshed.sandbox.layers import digest
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.repository import read_folder as source_folder


def test_everything_is_named_links_are_not_followed_and_skipped_folders_are_left_out(tmp_path: Path) -> None:
    for name in ("b/deep/file", "a/file", ".hidden", "skipped/file", "b/skipped/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a/link").symlink_to(tmp_path / "b")
    names = [".hidden", "a", "a/file", "a/link", "b", "b/deep", "b/deep/file"]
    assert all_below(tmp_path, skip={"skipped"}) == [tmp_path / name for name in names]
    assert len(all_below(tmp_path)) == len(names) + 4


def test_without_descriptors_nothing_is_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/file").write_text("x")
    with soft_limit(resource.RLIMIT_NOFILE, 3):
        with pytest.raises(OSError, match="Too many open files"):
            all_below(tmp_path)
        with pytest.raises(OSError, match="Too many open files"):
            digest(tmp_path)
        with pytest.raises(FolderError, match=r"cannot be read: .*Too many open files"):
            folder_to_work_on(tmp_path)
        with pytest.raises(PackageError, match=r"cannot be read .*Too many open files"):
            source_folder(tmp_path)
    assert len(all_below(tmp_path)) == 2
