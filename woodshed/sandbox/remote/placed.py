"""Hosts of boxes that come and go: whoever places them lists them in a file, whoever makes boxes follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from woodshed.engine.access import read_admin_key
from woodshed.sandbox.protocol import SandboxError

T = TypeVar("T")


class PlacedHosts:
    """The folder in which a run keeps what it knows of its placed hosts."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hosts.json"
        """``{"hosts": {node: URL}, "left_out": {node: why}}``; each new one is renamed into place."""
        self.key_file = folder / "admin.key"

    def key(self) -> str:
        """The key of the hosts. Raises SandboxError."""
        try:
            return read_admin_key(self.key_file)
        except ValueError as error:
            raise SandboxError(str(error)) from None

    def read(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Addresses of the hosts that serve, and what is said of those that cannot. None of either before the first
        file is there. Raises SandboxError where it is none of ours."""
        try:
            state = json.loads(self.file.read_text(encoding="utf-8"))
            return tuple(sorted(map(str, state["hosts"].values()))), tuple(map(str, state["left_out"].values()))
        except FileNotFoundError:
            return (), ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SandboxError(f"{self.file} cannot be read ({error!r}); run again: it is written anew") from None


def following(hosts: PlacedHosts, connect: Callable[[str], T]) -> Callable[[], list[T]]:
    """What ``connect`` made of the address of each host that serves now: the same object as long as the host stays."""
    known: dict[str, T] = {}

    def now() -> list[T]:
        nonlocal known
        known = {url: known[url] if url in known else connect(url) for url in hosts.read()[0]}
        return list(known.values())

    return now
