"""``woodshed boxes`` and ``woodshed roots``: arguments and screens; no logic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .tasks import _fail


def boxes(
    backend: Annotated[
        str, typer.Option(help="Sandbox backend; woodshed probe says which ones work here")
    ] = "namespace",
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port")] = 9100,
    key: Annotated[
        Path | None, typer.Option("--admin-key-file", help="File with the key; default: WOODSHED_ADMIN_KEY")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for layers and logs; default in the cache")] = None,
    max_boxes: Annotated[int | None, typer.Option(min=1, help="Maximum number of boxes at once; others wait")] = None,
    lease: Annotated[float, typer.Option(help="Seconds after which a silent client loses its boxes")] = 60.0,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Another field of the table sandbox: --set keep_memory=2147483648")
    ] = None,
) -> None:
    """Make boxes on this machine for runs on other machines (sandbox.hosts of their recipe).

    Whoever has the key can run programs in boxes here. The key is sent unencrypted: use a private network, or put a
    proxy with TLS in front.

        openssl rand -hex 32 > key; woodshed boxes --host 10.0.0.5 --admin-key-file key
    """
    from pydantic import ValidationError

    from woodshed.record.cache import cache_directory
    from woodshed.record.overrides import validated
    from woodshed.sandbox.protocol import SandboxError
    from woodshed.sandbox.remote.service import main
    from woodshed.sandbox.remote.settings import BoxServerSettings
    from woodshed.sandbox.settings import SandboxSettings

    try:
        sandbox = validated(SandboxSettings, {"backend": backend, "max_boxes": max_boxes}, set or [])
    except ValueError as error:
        raise _fail(error) from None
    place = state or cache_directory() / "boxes"
    try:
        settings = BoxServerSettings.model_validate(
            {"sandbox": sandbox, "state": place, "host": host, "port": port}
            | {"admin_key_file": key, "lease_seconds": lease}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _fail(ValueError(f"--{str(first['loc'][-1]).removesuffix('_seconds')}: {first['msg']}")) from None

    def announce(url: str) -> None:
        Console().print(f"{backend} boxes on {url}; layers and logs in {place}", soft_wrap=True, markup=False)

    try:
        main(settings, announce)
    except (ValueError, OSError, SandboxError) as error:
        raise _fail(error) from None


app = typer.Typer(
    help="Make whole root filesystems for boxes, without an engine and without root; see docs/sandboxes.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def debian(
    packages: Annotated[
        list[str], typer.Argument(help="Debian packages, NAME or NAME=VERSION; essential ones are added")
    ],
    suite: Annotated[str, typer.Option(help="Release such as bookworm or trixie; default: the machine's own")] = "",
    refresh: Annotated[bool, typer.Option("--refresh", help="Make it again from the mirror's current state")] = False,
) -> None:
    """Make a root of Debian packages and their dependencies, for example: woodshed roots debian python3 git gcc.

    Prints its name, which is the hash of its contents. The same request gives the same root until --refresh.
    """
    from woodshed.sandbox.images.debian import build_debian
    from woodshed.sandbox.images.store import RootStore

    store = RootStore()
    _report(lambda say: build_debian(store, packages, suite=suite, refresh=refresh, say=say))


@app.command()
def harbor(
    folder: Annotated[Path, typer.Argument(help="environment/ folder of a Harbor task, with a Dockerfile")],
    base: Annotated[str, typer.Option(help="Debian release to use instead of the image that the file names")] = "",
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Only a shell, coreutils and tar besides what the file installs")
    ] = False,
    allow: Annotated[list[str] | None, typer.Option(help="Host that RUN may reach; repeatable; default: none")] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Hosts in --allow may have addresses that are not public")
    ] = False,
) -> None:
    """Make a root from a simple Dockerfile: FROM a Debian or Python image, apt-get, COPY, RUN, ENV, WORKDIR.

    Packages of apt-get become packages of the root, every other command runs in a box. Lines that cannot be followed
    are reported.
    """
    from woodshed.sandbox import open_backend
    from woodshed.sandbox.images.harbor import build_harbor
    from woodshed.sandbox.images.store import RootStore
    from woodshed.sandbox.protocol import Egress

    store = RootStore()
    egress = Egress(tuple(allow), private=allow_private) if allow else None

    async def build(say: Callable[[str], None]) -> str:
        backend = open_backend("namespace")
        try:
            return await build_harbor(store, folder, backend, base=base, minimal=minimal, egress=egress, say=say)
        finally:
            await backend.close()

    _report(lambda say: asyncio.run(build(say)))


@app.command("list")
def list_() -> None:
    """List the roots of this machine, what they were made from, and where they are stored."""
    from woodshed.sandbox.images.store import RootStore

    store = RootStore()
    table = Table("root", "release", "packages asked for", "in all")
    for name in store.names():
        note = store.note(name)
        wanted = [p for p in note.recipe["packages"] if not p.startswith("?")]
        table.add_row(name, note.recipe["suite"], " ".join(wanted), str(len(note.packages)))
    Console().print(table)
    typer.echo(f"in {store.folder}")


def _report(build: Callable[[Callable[[str], None]], str]) -> None:
    from woodshed.sandbox.protocol import SandboxError

    console = Console(stderr=True, highlight=False)
    try:
        with console.status("starting") as status:
            name = build(lambda text: status.update(text, spinner="dots"))
    except (SandboxError, ValueError, OSError) as error:
        raise _fail(error) from None
    typer.echo(name)
