"""A Harbor environment made of our boxes: no container engine, no daemon, no root.

Selected by ``environment.import_path``. Simple Dockerfiles are supported (``sandbox.images.harbor``); a task whose
Dockerfile, network or limits are not supported is refused before anything starts. Needs Harbor, and so Python 3.12.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode

from woodshed.sandbox import open_backend
from woodshed.sandbox.images.dockerfile import read_dockerfile
from woodshed.sandbox.images.harbor import build_harbor
from woodshed.sandbox.images.store import RootStore
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox

from .transfer import fetch_file, fetch_folder, send_file, send_folder

_MAX_OUTPUT = 16 << 20
_NO_TIMEOUT = 24 * 3600.0
_ROOT_USERS = (None, "", "root", "0", 0)
_MEMORY = _DISK = 4 << 30
_building: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}


class WoodshedEnvironment(BaseEnvironment):
    """Harbor environment that runs a task in one of our boxes.

    ``offline``: run tasks that request the open network without a network; otherwise they are refused. ``base``: Debian
    release to use instead of the Dockerfile's image. ``build_allow``: hosts that the Dockerfile's commands may reach, a
    list or separated by commas; ``private``: these and the task's hosts may have addresses that are not public.
    """

    def __init__(
        self,
        *args: Any,
        offline: bool | str = False,
        base: str = "",
        build_allow: str | list[str] = "",
        private: bool | str = False,
        **kwargs: Any,
    ) -> None:
        self._offline, self._private = _flag(offline), _flag(private)
        hosts = build_allow.split(",") if isinstance(build_allow, str) else build_allow
        self._build_allow = tuple(host.strip() for host in hosts if host.strip())
        self._base = base
        self._backend: Backend | None = None
        self._box: Sandbox | None = None
        self._workdir = "/"
        self._env: dict[str, str] = {}
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "woodshed"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        dockerfile = self.environment_dir / "Dockerfile"
        if not dockerfile.is_file():
            raise FileNotFoundError(f"{dockerfile}: the woodshed environment needs a Dockerfile, it runs no images")
        if any(self.environment_dir.glob("*compose*.y*ml")):
            raise ValueError(f"{self.environment_dir}: the woodshed environment runs one box, not a compose file")
        if self.task_env_config.docker_image:
            raise ValueError(
                f"{self.environment_dir}: docker_image {self.task_env_config.docker_image!r} cannot be run; remove it, "
                "so that the Dockerfile is used"
            )
        read_dockerfile(dockerfile)

    def _validate_network_policy_support(self) -> None:
        super()._validate_network_policy_support()
        modes = {policy.network_mode for policy in (self._network_policy, *self._phase_network_policies)}
        if NetworkMode.PUBLIC in modes and not self._offline:
            raise ValueError(
                "network_mode 'public' is not supported by the woodshed environment: write network_mode = 'no-network' "
                "or 'allowlist' with allowed_hosts in task.toml, or pass the environment's argument offline=true"
            )

    async def start(self, force_build: bool) -> None:
        """Build the root if it does not exist (or ``force_build``), and make the box. Raises SandboxError
        (DockerfileError) that names the line."""
        self._backend = open_backend("namespace")
        try:
            store = RootStore()
            build = Egress(self._build_allow, private=self._private) if self._build_allow else None
            async with _building.setdefault(asyncio.get_running_loop(), asyncio.Lock()):  # trials of one task share it
                name = await build_harbor(
                    store,
                    self.environment_dir,
                    self._backend,
                    base=self._base,
                    egress=build,
                    refresh=force_build,
                    say=self.logger.debug,
                )
            note = store.note(name)
            self._env = note.env
            self._workdir = self.task_env_config.workdir or note.workdir
            spec = BoxSpec(
                root=store.path(name), workdir=self._workdir, env=note.env, limits=self._limits(), egress=self._egress()
            )
            self._box = await self._backend.create(spec)
            folders = self._mount_targets(writable_only=True)
            if folders:
                await self.exec(self._ensure_dirs_command(folders), cwd="/")
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Stop the box and delete its processes and files, whatever ``delete`` is."""
        backend, self._backend, self._box = self._backend, None, None
        if backend is not None:
            await backend.close()

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await send_file(self._running(), Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await send_folder(self._running(), Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await fetch_file(self._running(), source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await fetch_folder(self._running(), source_dir, Path(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run ``command`` with ``bash -c``, in the working folder if ``cwd`` is None. Raises RuntimeError after
        ``timeout_sec``, ValueError for a user other than root."""
        who = self._resolve_user(user)
        if who not in _ROOT_USERS:
            raise ValueError(f"user {who!r}: a woodshed box has one user, who may write everywhere in it; leave it out")
        done = await self._running().exec(
            ["bash", "-c", command],
            cwd=cwd or self._workdir,
            env=self._merge_env(env) or {},
            timeout=timeout_sec or _NO_TIMEOUT,
            max_output=_MAX_OUTPUT,
        )
        if done.timed_out:
            raise RuntimeError(f"no end of the command within {timeout_sec} seconds")
        out, errors = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return ExecResult(stdout=out, stderr=errors, return_code=done.returncode & 0xFF)

    def _running(self) -> Sandbox:
        if self._box is None:
            raise RuntimeError("the woodshed environment is not started, or was stopped")
        return self._box

    def _limits(self) -> Limits:
        memory, disk = self._effective_memory_mb, self._effective_storage_mb
        return Limits(
            memory=memory << 20 if memory else _MEMORY,
            processes=1024,
            cpu_seconds=None,
            file_size=None,
            disk=disk << 20 if disk else _DISK,
        )

    def _egress(self) -> Egress:
        if self._network_policy.network_mode != NetworkMode.ALLOWLIST:
            return Egress()  # a loopback, like in a container: tests may start services
        return Egress(tuple(self._network_policy.allowed_hosts), private=self._private)


def _flag(value: bool | str) -> bool:
    """Parse a flag; arguments of Harbor's command line are text. Raises ValueError."""
    if isinstance(value, bool):
        return value
    if value.lower() in ("true", "yes", "1", "false", "no", "0", ""):
        return value.lower() in ("true", "yes", "1")
    raise ValueError(f"{value!r} is neither true nor false")
