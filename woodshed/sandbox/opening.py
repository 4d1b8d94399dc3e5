"""Opens the pool of boxes that the settings describe: on this machine, on other hosts, or on both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from woodshed.cluster.service import ADMIN_VARIABLE, read_admin_key
from woodshed.record.jsonl import JsonLines
from woodshed.sandbox.backends.by_name import box_name, open_backend
from woodshed.sandbox.host.pressure import Bounds, Load, measure
from woodshed.sandbox.remote.placement import Local, Place, PlacedHosts, Placement, following

from .pool import Pool
from .protocol import SandboxError
from .settings import LOCAL, RAY, SandboxSettings


def open_pool(settings: SandboxSettings, egress_log: Path | None = None) -> Pool:
    """Open a pool of boxes on this machine, which admits boxes while the machine has room."""
    backend = open_backend(
        settings.backend,
        root=settings.root,
        max_starting=settings.max_starting,
        egress_log=egress_log,
        cgroups=settings.cgroups,
    )
    place = (settings.root or Path(tempfile.gettempdir())).resolve()
    return Pool(
        backend,
        lambda: measure(place),
        settings.bounds(),
        max_boxes=settings.max_boxes,
        bases=settings.bases,
        base_bytes=settings.base_bytes,
    )


def open_boxes(settings: SandboxSettings, egress_log: Path | None = None, placed: Path | None = None) -> Pool:
    """Open a pool of boxes on this machine, or on ``settings.hosts``.

    Each host controls its own admission and warm bases; only ``max_boxes`` is enforced here. ``placed``: folder
    (``PlacedHosts``) that lists the hosts that the run places. Raises SandboxError if the key of the hosts is missing,
    or if hosts would have to be placed and ``placed`` is None.
    """
    if not settings.hosts:
        return open_pool(settings, egress_log)
    from woodshed.sandbox.remote.backend import RemoteBackend

    name = box_name(settings.backend)
    egress = JsonLines(egress_log).append if egress_log is not None else None

    def remote(url: str, key: str) -> Place:
        return RemoteBackend(url, key, name, egress=egress)

    places: Sequence[Place] | Callable[[], Sequence[Place]]
    if RAY in settings.hosts:
        if placed is None:
            raise SandboxError(f"sandbox.hosts = [{RAY!r}]: only `woodshed run` places box servers on a Ray cluster")
        hosts = PlacedHosts(placed)
        places = following(hosts, partial(remote, key=hosts.key()))
    else:
        key = _key(settings.hosts_key_file) if set(settings.hosts) != {LOCAL} else ""
        places = [
            Local(open_pool(settings, egress_log)) if host == LOCAL else remote(host, key) for host in settings.hosts
        ]
    no_bounds = Bounds(None, None, None, None)
    placement = Placement(places, name)
    return Pool(placement, lambda: Load(0, 0), no_bounds, max_boxes=settings.max_boxes, bases=0)


def _key(file: Path | None) -> str:
    if file is None and not os.environ.get(ADMIN_VARIABLE, "").strip():
        raise SandboxError(f"sandbox.hosts: no key; name a file in sandbox.hosts_key_file, or set {ADMIN_VARIABLE}")
    try:
        return read_admin_key(file)
    except ValueError as error:
        raise SandboxError(f"sandbox.hosts_key_file: {error}") from None
