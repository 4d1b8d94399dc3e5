"""Sandbox backends by name or by reference (``"module:Class"``), each imported only when it is asked for."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import cast

from woodshed.sandbox.protocol import Backend, Unsupported

NAMES = ("namespace", "gvisor", "microvm", "docker", "podman")

_METHODS = ("probe", "create", "fork", "drop", "close")


def installed_names() -> tuple[str, ...]:
    """Return the backends to probe by default; ``microvm`` is optional and included only if QEMU is installed."""
    from woodshed.sandbox.backends.microvm.qemu import is_installed

    return tuple(name for name in NAMES if name != "microvm" or is_installed())


def open_backend(
    name: str = "namespace",
    *,
    root: Path | None = None,
    max_starting: int = 16,
    egress_log: Path | None = None,
    cgroups: bool = True,
) -> Backend:
    """Open a backend by name or reference; it starts nothing before its first box. Raises Unsupported."""
    if name == "namespace":
        from woodshed.sandbox.backends.namespace.backend import NamespaceBackend

        return NamespaceBackend(root, max_starting=max_starting, egress_log=egress_log, cgroups=cgroups)
    if name == "gvisor":
        from woodshed.sandbox.backends.gvisor.backend import GvisorBackend

        return GvisorBackend(root, max_starting=min(8, max_starting), egress_log=egress_log)
    if name == "microvm":
        from woodshed.sandbox.backends.microvm.backend import MicrovmBackend

        return MicrovmBackend(root, max_starting=min(4, max_starting))
    if name in ("docker", "podman"):
        from woodshed.sandbox.backends.docker.backend import DockerBackend

        return DockerBackend(name, root, max_starting=min(8, max_starting))
    try:
        kind = load_backend(name)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    return cast(Backend, kind(root, max_starting=max_starting, egress_log=egress_log, cgroups=cgroups))


def load_backend(reference: str) -> type:
    """Load the class of a reference. Raises ValueError unless it is a backend that ``open_backend`` can create."""
    from woodshed.record.settings import is_reference, load_reference  # not in helper processes: they have no pydantic

    if not is_reference(reference):
        near = difflib.get_close_matches(reference, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(NAMES)}, or 'module:Class'"
        raise ValueError(f"sandbox.backend: unknown sandbox backend {reference!r}; {hint}")
    kind = load_reference(reference, "sandbox.backend")
    if not isinstance(kind, type):
        raise ValueError(f"sandbox.backend: {reference!r} is not a class")
    missing = [name for name in _METHODS if not callable(getattr(kind, name, None))]
    if not isinstance(getattr(kind, "name", None), str):
        missing.append("name")
    if missing:
        raise ValueError(
            f"sandbox.backend: {reference!r} is not a sandbox backend: it lacks {', '.join(missing)} "
            "(see Backend in woodshed/sandbox/protocol.py)"
        )
    try:
        inspect.signature(kind).bind(None, max_starting=1, egress_log=None, cgroups=True)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sandbox.backend: {reference!r} cannot be called with (root, *, max_starting, egress_log, cgroups): "
            f"{error}"
        ) from None
    return kind


def check_name(name: str) -> None:
    """Raise ValueError unless ``name`` is a built-in backend or a reference that loads."""
    if name not in NAMES:
        load_backend(name)


def box_name(name: str) -> str:
    """Return ``Backend.name`` of a backend, which box servers report. Raises ValueError."""
    return name if name in NAMES else str(load_backend(name).name)  # type: ignore[attr-defined]
