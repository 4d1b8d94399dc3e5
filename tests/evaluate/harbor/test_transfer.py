"""Folders into real boxes and out of them, and a box that lies about names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from woodshed.evaluate.harbor import transfer
from woodshed.sandbox import open_backend
from woodshed.sandbox.protocol import BoxSpec, SandboxError


def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_BATCH", 1 << 16)  # so that files of a test come in pieces
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep/er/big.bin").write_bytes(os.urandom((1 << 16) * 2 + 17))
    (source / "exact.bin").write_bytes(os.urandom(1 << 16))
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "tool").write_bytes(b"\x7fELF")
    (source / "tool").chmod(0o755)

    async def main() -> None:
        backend = open_backend("namespace", root=tmp_path / "state")
        if not (probe := backend.probe()).ok:
            pytest.skip("; ".join(probe.reasons))
        try:
            box = await backend.create(BoxSpec())
            await transfer.send_folder(box, source, "/opt/place")
            await transfer.send_file(box, source / "tool", "/opt/tool")
            done = await box.exec(
                "cd /opt/place && sh run.sh && test -x tool && test -x ../tool && test -d empty && echo ok"
            )
            assert done.stdout == b"ran\nok\n", done
            await box.exec("ln -s /etc/passwd /opt/place/link; mkfifo /opt/place/pipe")
            await transfer.fetch_folder(box, "/opt/place", tmp_path / "back")
            await transfer.fetch_file(box, "/opt/place/exact.bin", tmp_path / "one/exact.bin")
            with pytest.raises(FileNotFoundError):
                await transfer.fetch_file(box, "/opt/absent", tmp_path / "absent")
        finally:
            await backend.close()

    asyncio.run(main())
    names = {p.relative_to(source) for p in source.rglob("*")}
    assert {p.relative_to(tmp_path / "back") for p in (tmp_path / "back").rglob("*")} == names
    for name in names:
        if (source / name).is_file():
            assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert (tmp_path / "one/exact.bin").read_bytes() == (source / "exact.bin").read_bytes()


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "a\0b"])
def test_a_name_that_leads_out(tmp_path: Path, name: str) -> None:
    class Liar:
        async def list(self, *_: Any, **__: Any) -> list[tuple[str, str, int]]:
            return [(name, "file", 1)]

        async def read(self, *_: Any, **__: Any) -> bytes:
            return b"x"

    with pytest.raises(SandboxError, match="leads out"):
        asyncio.run(transfer.fetch_folder(Liar(), "/x", tmp_path / "in"))  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["in"] and not os.listdir(tmp_path / "in")


def test_files_of_holes_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_BATCH", 1 << 16)
    monkeypatch.setattr(transfer, "_LARGEST", 1 << 20)
    monkeypatch.setattr(transfer, "_FOLDER", 3 << 20)

    async def main() -> None:
        backend = open_backend("namespace", root=tmp_path / "state")
        if not (probe := backend.probe()).ok:
            pytest.skip("; ".join(probe.reasons))
        try:
            box = await backend.create(BoxSpec())
            made = "mkdir one many; truncate -s 1M one/exact; truncate -s 1M many/0 many/1 many/2 many/3"
            assert (await box.exec(made)).returncode == 0
            await transfer.fetch_folder(box, "/workspace/one", tmp_path / "one")
            with pytest.raises(OSError, match="larger than"):
                await transfer.fetch_folder(box, "/workspace/many", tmp_path / "many")
            assert (await box.exec("truncate -s 2M one/large")).returncode == 0
            with pytest.raises(OSError, match=r"larger than.*one/large"):
                await transfer.fetch_folder(box, "/workspace/one", tmp_path / "again")
        finally:
            await backend.close()

    asyncio.run(main())
    assert (tmp_path / "one/exact").stat().st_size == 1 << 20
    assert sum(path.stat().st_size for path in (tmp_path / "many").iterdir()) <= 3 << 20
    assert (tmp_path / "again/large").stat().st_size <= 1 << 20
