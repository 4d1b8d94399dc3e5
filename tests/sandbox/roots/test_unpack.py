"""Archives that a box made: nothing in them leads out of the folder, whatever they say."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.sandbox.images.harbor import unpack
from woodshed.sandbox.protocol import SandboxError

_KINDS = {
    "file": tarfile.REGTYPE,
    "dir": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


def pack(place: Path, *members: tuple[str, str, str]) -> Path:
    with tarfile.open(place, "w") as archive:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = _KINDS[kind]
            info.mode = 0o755
            if kind in ("link", "hard"):
                info.linkname = text
            data = text.encode() if kind == "file" else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return place


def test_a_root_comes_out_as_it_was(tmp_path: Path) -> None:
    members = [
        ("./usr", "dir", ""),
        ("./usr/bin/sh", "file", "program"),
        ("./bin", "link", "usr/bin"),
        ("./usr/bin/bash", "hard", "./usr/bin/sh"),
        ("./etc/awk", "link", "/usr/bin/mawk"),
        ("./pipe", "pipe", ""),
        ("./null", "device", ""),
    ]
    out = tmp_path / "out"
    out.mkdir()
    unpack(pack(tmp_path / "a.tar", *members), out, max_bytes=1 << 20)
    assert (out / "bin/sh").read_text() == (out / "usr/bin/bash").read_text() == "program"
    assert os.readlink(out / "etc/awk") == "/usr/bin/mawk" and os.access(out / "usr/bin/bash", os.X_OK)
    assert sorted(os.listdir(out)) == ["bin", "etc", "usr"]


@pytest.mark.parametrize(
    "members",
    [
        [("../out-of-it", "file", "x")],
        [("/tmp/absolute", "file", "x")],
        [("a/../../b", "file", "x")],
        [("a", "hard", "../../../etc/passwd")],
        [("a", "hard", "/etc/passwd")],
        [("a", "link", "/tmp"), ("a", "dir", ""), ("a/b", "file", "x")],
        [("a", "hard", "absent")],
        [("a", "file", "x" * 3000)],
        [("a", "file", "x" * 500), *((f"b{n}", "hard", "a") for n in range(4))],
    ],
)
def test_hostile_members(tmp_path: Path, members: list[tuple[str, str, str]]) -> None:
    out = tmp_path / "in/out"
    out.mkdir(parents=True)
    with pytest.raises(SandboxError):
        unpack(pack(tmp_path / "a.tar", *members), out, max_bytes=2000)
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "in"] and os.listdir(tmp_path / "in") == ["out"]


def test_a_write_through_a_link_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    members = [("d", "link", str(tmp_path / "target")), ("d/file", "file", "x")]
    with pytest.raises(SandboxError):
        unpack(pack(tmp_path / "a.tar", *members), out, max_bytes=2000)
    assert os.listdir(tmp_path / "target") == []


@settings(max_examples=40)
@given(st.binary(max_size=2000))
def test_no_archive_at_all(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "a.tar").write_bytes(data)
        (Path(place) / "out").mkdir()
        try:
            unpack(Path(place) / "a.tar", Path(place) / "out", max_bytes=1000)
        except SandboxError:
            pass
        assert sorted(os.listdir(place)) == ["a.tar", "out"]
