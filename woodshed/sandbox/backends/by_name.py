"""The backends by name, each imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path

from woodshed.sandbox.protocol import Backend, Unsupported

NAMES = ("namespace", "gvisor", "microvm", "docker", "podman")


def open_backend(
    name: str = "namespace",
    *,
    root: Path | None = None,
    max_starting: int = 16,
    egress_log: Path | None = None,
    cgroups: bool = True,
) -> Backend:
    """The backend called ``name``; nothing is started before its first box. Raises Unsupported."""
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
    raise Unsupported(f"unknown sandbox backend {name!r}; there is: {', '.join(NAMES)}")
