"""``woodshed boxes``: arguments and screens; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .tasks import _fail


def boxes(
    backend: Annotated[
        str, typer.Option(help="What isolates a box; woodshed probe says what works here")
    ] = "namespace",
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port")] = 9100,
    key: Annotated[
        Path | None, typer.Option("--admin-key-file", help="File with the key; else WOODSHED_ADMIN_KEY")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Folder for layers and logs; default in the cache")] = None,
    max_boxes: Annotated[int | None, typer.Option(min=1, help="Boxes alive at once; later ones wait")] = None,
    lease: Annotated[float, typer.Option(help="Seconds after which a silent client loses its boxes")] = 60.0,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Another field of the table sandbox: --set keep_memory=2147483648")
    ] = None,
) -> None:
    """Make boxes on this machine for runs on others (sandbox.hosts of their recipe).

    Whoever has the key runs programs in boxes here. It travels in the clear: use a private network, or put a proxy with
    TLS in front.

        openssl rand -hex 32 > key; woodshed boxes --host 10.0.0.5 --admin-key-file key
    """
    from pydantic import ValidationError

    from woodshed.record.cache import cache_directory
    from woodshed.sandbox.protocol import SandboxError
    from woodshed.sandbox.remote.serve import main
    from woodshed.sandbox.remote.settings import BoxServerSettings

    extra = dict(field.partition("=")[::2] for field in set or [])
    sandbox = {"backend": backend, "max_boxes": max_boxes, **extra}
    place = state or cache_directory() / "boxes"
    try:
        settings = BoxServerSettings.model_validate(
            {"sandbox": sandbox, "state": place, "host": host, "port": port}
            | {"admin_key_file": key, "lease_seconds": lease}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _fail(ValueError(f"--{str(first['loc'][-1]).removesuffix('_seconds')}: {first['msg']}")) from None
    Console().print(f"{backend} boxes on http://{host}:{port}; layers and logs in {place}", soft_wrap=True)
    try:
        main(settings)
    except (ValueError, OSError, SandboxError) as error:
        raise _fail(error) from None
