"""A root filesystem from a Dockerfile for real: packages from the mirror, commands in a box, boxes above the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from woodshed.sandbox.images import harbor
from woodshed.sandbox.images.dockerfile import DockerfileError
from woodshed.sandbox.images.harbor import build_harbor
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.protocol import BoxSpec, SandboxError, Snapshot


def test_the_dockerfile_was_followed(made_root: tuple[RootStore, str]) -> None:
    store, name = made_root
    root, note = store.path(name), store.note(name)
    assert (root / "app/inner/pkg/mod.txt").read_text() == "copied\n"
    assert (root / "app/inner/said").read_text() == "tool of world\ntwo words\n"
    assert (root / "usr/local/bin/tool").stat().st_mode & 0o111 and (root / "after").read_text() == "after\n"
    assert (root / "etc/link").is_symlink() and not (root / "usr/bin/yes").exists()
    assert note.workdir == "/app/inner" and note.env == {"NAME": "world", "MODE": "two words"}
    packages = {package: sha for package, _, sha in note.packages}
    assert {"jq", "dash", "libc6"} <= set(packages) and all(len(sha) == 64 for sha in packages.values())
    assert not list(root.rglob("root.tar")) and not list((root / "root").iterdir())


def test_a_box_runs_on_it_and_forks(made_root: tuple[RootStore, str], with_backend: Callable[..., Any]) -> None:
    store, name = made_root
    note = store.note(name)

    async def body(backend: Any) -> None:
        files = {"mine": b"file"}
        box = await backend.create(BoxSpec(root=store.path(name), workdir=note.workdir, env=note.env, files=files))
        done = await box.exec("cat said mine; echo '[1]' | jq -c .; tool; touch /usr/x /etc/y; command -v python3")
        assert done.stdout == b"tool of world\ntwo words\nfile[1]\ntool of world\n", done
        assert (
            await box.exec_python("import json; print(open('/usr/bin/jq', 'rb').read(4))")
        ).stdout == b"b'\\x7fELF'\n"
        assert (await box.exec("ls -A /sys; cat /etc/shadow")).stdout == b""
        snapshot: Snapshot = await box.snapshot()
        [fork] = await backend.fork(snapshot)
        assert (await fork.exec("ls /usr/x mine && rm -r /usr/bin")).returncode == 0
        assert (await fork.exec("true")).returncode == 127, "it was its own"
        fresh = await backend.create(BoxSpec(root=store.path(name)))
        assert (await fresh.exec("ls /usr/x")).returncode != 0 and (await fresh.exec("jq --version")).returncode == 0

    with_backend(body)


def test_the_same_folder_is_not_built_again(
    made_root: tuple[RootStore, str], environment: Path, with_backend: Callable[..., Any]
) -> None:
    store, name = made_root
    said: list[str] = []

    async def body(backend: Any) -> None:
        assert await build_harbor(store, environment, backend, minimal=True, say=said.append) == name

    with_backend(body)
    assert said == [] and store.names().count(name) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("RUN echo to stderr >&2 && exit 3", r"Dockerfile:3: RUN ended with 3: to stderr"),
        ("COPY absent.txt /x", r"Dockerfile:3: COPY absent.txt: there is no such file"),
        ("COPY ../../etc/passwd /x", r"Dockerfile:3: COPY"),
    ],
)
def test_a_step_that_fails_is_named(
    made_root: tuple[RootStore, str],
    _debian: str,
    line: str,
    says: str,
    tmp_path: Path,
    with_backend: Callable[..., Any],
) -> None:
    """The packages are those of the root that is there, so that only the step is new."""
    store, _ = made_root
    (tmp_path / "d").mkdir()
    (tmp_path / "d/Dockerfile").write_text(f"FROM debian:{_debian}\nRUN apt-get install -y jq\n{line}\n")

    async def body(backend: Any) -> None:
        with pytest.raises(DockerfileError, match=says):
            await build_harbor(store, tmp_path / "d", backend, minimal=True)

    with_backend(body)
    assert not list(store.folder.glob("woodshed-root-*"))


def test_an_image_without_a_counterpart_is_refused(tmp_path: Path, with_backend: Callable[..., Any]) -> None:
    (tmp_path / "Dockerfile").write_text("FROM rust:1.80\nRUN cargo build\n")

    async def body(backend: Any) -> None:
        with pytest.raises(DockerfileError, match=r"FROM rust:1\.80 has no counterpart.*docker backend"):
            await build_harbor(RootStore(tmp_path / "roots"), tmp_path, backend)

    with_backend(body)


def test_a_root_that_never_ends_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_backend: Callable[..., Any]
) -> None:
    monkeypatch.setattr(harbor, "_PIECE", 1 << 16)
    monkeypatch.setattr(harbor, "_MAX_BYTES", 1 << 19)

    async def body(backend: Any) -> None:
        programs = {"dd": b"#!/bin/sh\nhead -c 65536 /dev/zero\n", "tar": b"#!/bin/sh\n"}
        files = {f"/opt/{name}": text for name, text in programs.items()}
        box = await backend.create(BoxSpec(files=files, env={"PATH": "/opt:/usr/bin"}))
        with pytest.raises(SandboxError, match="larger than 524288 bytes"):
            await harbor._take(box, tmp_path / "root.tar")

    with_backend(body)
    assert (tmp_path / "root.tar").stat().st_size <= (1 << 19) + (2 << 16)
