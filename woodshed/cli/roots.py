"""``woodshed roots``: arguments and screens of root filesystems; no logic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    help="Make whole root filesystems for boxes, without an engine and without root; see docs/sandboxes.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def debian(
    packages: Annotated[
        list[str], typer.Argument(help="Debian packages, NAME or NAME=VERSION; essential ones come too")
    ],
    suite: Annotated[str, typer.Option(help="Release such as bookworm or trixie; default: the machine's own")] = "",
    refresh: Annotated[bool, typer.Option("--refresh", help="Make it anew from what the mirror has now")] = False,
) -> None:
    """Make a root of Debian packages and all that they need, for example: woodshed roots debian python3 git gcc.

    Prints its name, which is the hash of its contents. The same request gives the same root until --refresh.
    """
    from woodshed.sandbox.images.debian import build_debian
    from woodshed.sandbox.images.store import RootStore

    store = RootStore()
    _report(lambda say: build_debian(store, packages, suite=suite, refresh=refresh, say=say))


@app.command()
def harbor(
    folder: Annotated[Path, typer.Argument(help="environment/ folder of a Harbor task, with a Dockerfile")],
    base: Annotated[str, typer.Option(help="Debian release to take in place of the image that the file names")] = "",
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Only a shell, coreutils and tar besides what the file installs")
    ] = False,
    allow: Annotated[list[str] | None, typer.Option(help="Host that RUN may reach (again for more); else none")] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Hosts in --allow may have addresses that are not public")
    ] = False,
) -> None:
    """Make a root from a simple Dockerfile: FROM a Debian or Python image, apt-get, COPY, RUN, ENV, WORKDIR.

    apt-get becomes packages of the root, every other command runs in a box. What cannot be followed is named by line.
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
    """List the roots of this machine, what they were made from, and where they lie."""
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
        console.print(f"[bold red]woodshed:[/] {error}", soft_wrap=True)
        raise typer.Exit(2) from None
    typer.echo(name)
