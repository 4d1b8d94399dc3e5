"""Settings of the sandboxes that a run uses."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from woodshed.record.settings import Settings, is_reference
from woodshed.sandbox.backends.by_name import check_name
from woodshed.sandbox.host.egress.rules import parse_rule
from woodshed.sandbox.host.pressure import Bounds

from .protocol import Egress, Limits

LOCAL = "local"
"""Entry of ``hosts`` that stands for this machine."""
RAY = "ray"
"""Only entry of ``hosts`` that stands for every node of a Ray cluster."""


class SandboxSettings(Settings):
    """The backend that makes the boxes, their number, and the limits of one box."""

    backend: str = "namespace"
    """Isolation of boxes: namespace (needs Linux with user namespaces and nothing else), gvisor, microvm, docker,
    podman, or ``"module:Class"`` of your own."""

    root: Path | None = None
    """Folder for the backend's state while it runs; default: the system's temporary folder."""

    max_starting: int = Field(default=16, ge=1)
    """Maximum number of boxes made at once; more would only wait for the same processors."""

    max_boxes: int | None = Field(default=None, ge=1)
    """Maximum number of boxes alive at once in one process of a run; further ones wait. None for no maximum."""

    keep_memory: int | None = Field(default=512 << 20, ge=0)
    """Bytes of memory that must be available on the machine for another box; none for no bound. While a bound is not
    met no box is made, unless none is alive; after five minutes that is an error of the sandbox."""

    keep_disk: int | None = Field(default=256 << 20, ge=0)
    """Bytes that must be free on the disk of ``root`` for another box; none for no bound."""

    memory_stall: float | None = Field(default=20.0, gt=0, le=100)
    """Maximum percentage of the last ten seconds in which all work waited for memory (PSI ``full``); above it no box is
    made. None for no bound; without effect if the kernel has no PSI."""

    cpu_stall: float | None = Field(default=None, gt=0, le=100)
    """The same for work that waits for a processor (PSI ``some``)."""

    bases: int = Field(default=32, ge=0)
    """Maximum number of warm bases: snapshots that boxes with equal, large workspaces fork from; 0 for none."""

    base_bytes: int = Field(default=1 << 30, ge=0)
    """Bytes of memory that warm bases may take together."""

    memory: int | None = Field(default=2 << 30, ge=64 << 20)
    """Bytes of memory of one box: address space of each process, and memory of all together. None for no limit."""

    processes: int | None = Field(default=256, ge=1)
    """Processes and threads in one box; none for no limit."""

    cpu_seconds: float | None = Field(default=600.0, gt=0)
    """Processor seconds of one process; none for no limit."""

    file_size: int | None = Field(default=256 << 20, ge=1 << 20)
    """Bytes of the largest file a box can write; none for no limit."""

    disk: int | None = Field(default=512 << 20, ge=1 << 20)
    """Bytes that a box can write in total (held in memory); none for the system's own bound."""

    cgroups: bool = True
    """Give namespace boxes control groups for memory and processes, if this machine lets us make any. Without them,
    memory means what processes have mapped, not what the kernel holds for them; ``woodshed probe`` shows what enforces
    each limit."""

    allow: tuple[str, ...] = ()
    """Hosts that an agent's boxes may reach: ``HOST``, ``*.DOMAIN`` or ``HOST:PORT``. They go through a proxy that
    refuses all others and logs every request to ``egress.jsonl``. Boxes that grade never reach anything."""

    allow_private: bool = False
    """Let names in ``allow`` resolve to addresses that are not public, such as a company's mirror."""

    hosts: tuple[str, ...] = ()
    """Addresses of box servers (``woodshed boxes``) that make the boxes, ``http://HOST:PORT``; ``local`` is this
    machine. Empty: this machine only. Each server has its own settings for room and warm bases. ``ray``, alone: the run
    starts a server on every node of a Ray cluster (RAY_ADDRESS, else the one on this machine), with the bounds of this
    table and a key of its own."""

    hosts_key_file: Path | None = None
    """File with the admin key of ``hosts``; without it the variable WOODSHED_ADMIN_KEY is read."""

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str) -> str:
        try:
            check_name(value)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("sandbox.backend: ")) from None
        return value

    @field_validator("hosts")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if RAY in value and len(value) > 1:
            raise ValueError(f"'{RAY}' stands alone: name the box servers themselves, or let the run place them")
        for host in value:
            if host not in (LOCAL, RAY) and not re.fullmatch(r"https?://[^/\s@]+/?", host):
                raise ValueError(
                    f"{host!r} is not an address of a box server: write http://HOST:PORT, '{LOCAL}' or '{RAY}'"
                )
            urlsplit(host).port  # noqa: B018  (raises ValueError for a bad port)
        if len({host.rstrip("/") for host in value}) < len(value):
            raise ValueError("a host is named twice")
        return value

    @field_validator("allow")
    @classmethod
    def _rules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            parse_rule(rule)
        return value

    @model_validator(mode="after")
    def _possible(self) -> SandboxSettings:
        if self.allow and self.backend not in ("namespace", "gvisor") and not is_reference(self.backend):
            raise ValueError(f"the {self.backend} backend gives boxes no network: leave out allow, or use namespace")
        if RAY in self.hosts and self.hosts_key_file is not None:
            raise ValueError(f"hosts_key_file: with hosts = ['{RAY}'] the run makes a key itself; leave it out")
        return self

    def egress(self) -> Egress | None:
        """Return the network access of agents' boxes, as backends take it."""
        return Egress(self.allow, private=self.allow_private) if self.allow else None

    def bounds(self) -> Bounds:
        """Return the bounds on what must be free on the machine for another box."""
        return Bounds(self.keep_memory, self.keep_disk, self.memory_stall, self.cpu_stall)

    def limits(self) -> Limits:
        """Return the limits as backends take them."""
        return Limits(self.memory, self.processes, self.cpu_seconds, self.file_size, self.disk)
