"""Backends by name and by reference: in settings, in recipes, behind a box server, in ``woodshed probe``."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from woodshed.attacks import probe
from woodshed.attacks.probe import print_probe
from woodshed.recipe.load import BUILTIN, RecipeError, load_recipe
from woodshed.sandbox import open_backend
from woodshed.sandbox.backends.by_name import NAMES, installed_names
from woodshed.sandbox.opening import open_boxes, open_pool
from woodshed.sandbox.protocol import BoxSpec, Probe, Unsupported
from woodshed.sandbox.settings import SandboxSettings

from .hosts import KEY, BoxHost

MINE = """
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend

class MyBackend(NamespaceBackend):
    name = "mine"

class Fewer(NamespaceBackend):
    def __init__(self, root):
        super().__init__(root)

class NoBackend:
    name = "none"
    def probe(self): ...

def function(): ...
"""
RECIPE = 'name = "small"\n[sandbox]\nbackend = "{}"\n'


@pytest.fixture
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module ``mine`` in the current folder, which is not in the tree."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.usefixtures("_possible", "_mine")
def test_a_recipe_names_a_backend_by_reference(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text((BUILTIN / "smoke.toml").read_text() + '\n[sandbox]\nbackend = "mine:MyBackend"\n')
    settings = load_recipe(recipe).sandbox
    assert load_recipe("smoke", ["sandbox.backend=mine:MyBackend"]).sandbox == settings

    async def body() -> None:
        pool = open_pool(settings)
        try:
            assert pool.name == "mine" and pool.probe().ok
            box = await pool.create(BoxSpec(files={"a": b"written"}))
            assert (await box.exec("cat a")).stdout == b"written"
            snapshot = await box.snapshot()
            assert snapshot.backend == "mine"
            (fork,) = await pool.fork(snapshot)
            assert await fork.read("a") == b"written"
        finally:
            await pool.close()

    asyncio.run(body())


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("namespce", "unknown sandbox backend 'namespce'; did you mean 'namespace'?"),
        ("chroot", f"unknown sandbox backend 'chroot'; known: {', '.join(NAMES)}, or 'module:Class'"),
        ("mine:Other", "'mine:Other' cannot be loaded: AttributeError: module 'mine' has no attribute 'Other'"),
        ("nowhere:Backend", "'nowhere:Backend' cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("mine:function", "'mine:function' is not a class"),
        (
            "mine:NoBackend",
            "'mine:NoBackend' is not a sandbox backend: it lacks create, fork, drop, close "
            "(see Backend in woodshed/sandbox/protocol.py)",
        ),
        (
            "mine:Fewer",
            "'mine:Fewer' cannot be called with (root, *, max_starting, egress_log, cgroups): "
            "got an unexpected keyword argument 'max_starting'",
        ),
    ],
)
def test_a_recipe_whose_backend_cannot_be_used_does_not_load(tmp_path: Path, name: str, why: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(name))
    with pytest.raises(RecipeError) as refused:
        load_recipe(recipe)
    assert str(refused.value) == f"{recipe}:3: sandbox.backend: {why}"
    with pytest.raises(Unsupported):
        open_backend(name)


@pytest.mark.usefixtures("_mine")
def test_a_backend_by_reference_decides_itself_about_networks() -> None:
    assert SandboxSettings(backend="mine:MyBackend", allow=("index.example",)).egress() is not None
    with pytest.raises(ValidationError, match="the podman backend gives boxes no network"):
        SandboxSettings(backend="podman", allow=("index.example",))


@pytest.mark.usefixtures("_possible", "_mine")
def test_a_box_server_makes_boxes_of_a_backend_by_reference(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    host = BoxHost(tmp_path / "host", "--backend", "mine:MyBackend")

    async def body() -> None:
        boxes = open_boxes(
            SandboxSettings(backend="mine:MyBackend", hosts=(host.url,), hosts_key_file=tmp_path / "key")
        )
        try:
            box = await boxes.create(BoxSpec(files={"a": b"written"}))
            assert (await box.exec("cat a")).stdout == b"written"
        finally:
            await boxes.close()

    try:
        host.wait()
        asyncio.run(body())
    finally:
        host.stop()


def _probed(*names: str) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=200)
    code = print_probe(console, names)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_probe_shows_microvm_where_qemu_is_installed_or_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path))
    monkeypatch.delenv("WOODSHED_QEMU", raising=False)
    monkeypatch.setattr(probe, "_probe", lambda name: Probe(name == "namespace", ("a reason",)))
    without = tuple(name for name in NAMES if name != "microvm")
    assert installed_names() == without
    code, printed = _probed()
    assert code == 0 and "microvm" not in printed
    assert all(f"sandbox {name}: " in printed for name in without)

    code, printed = _probed("microvm")
    assert code == 2 and "sandbox microvm: does not work\n  a reason" in printed and "namespace" not in printed

    (tmp_path / "qemu").mkdir()
    assert installed_names() == NAMES
    assert "sandbox microvm: does not work" in _probed()[1]
    (tmp_path / "qemu").rmdir()
    monkeypatch.setenv("WOODSHED_QEMU", str(tmp_path / "elsewhere"))
    assert installed_names() == NAMES


@pytest.mark.usefixtures("_possible", "_mine")
def test_probe_tries_what_is_named() -> None:
    code, printed = _probed("namespace", "mine:MyBackend")
    assert code == 0 and "sandbox namespace: works" in printed and "sandbox mine:MyBackend: works" in printed
    code, printed = _probed("chroot")
    assert code == 2 and "unknown sandbox backend 'chroot'" in printed
