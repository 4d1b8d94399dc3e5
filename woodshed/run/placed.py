"""Servers that live as long as one command: box servers on a Ray cluster (``sandbox.hosts = ["ray"]``), and a policy
server."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from woodshed.cluster.idle import IdleClock
from woodshed.cluster.service import ADMIN_VARIABLE
from woodshed.cluster.supervisor import Program, ProgramFailed, Supervisor, last_words
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory, key_file
from woodshed.sandbox.remote.placement import PlacedHosts
from woodshed.sandbox.settings import RAY, SandboxSettings
from woodshed.stages.servers import RESTARTS, server_programs

from .plan import plan

_NAME = "boxes"
_BOUNDS = (
    "max_starting",
    "keep_memory",
    "keep_disk",
    "memory_stall",
    "cpu_stall",
    "bases",
    "base_bytes",
    "cgroups",
)
"""Settings of a recipe that bound the boxes of each machine; ``woodshed boxes`` has settings of the same names."""


class PlacedBoxes:
    """The box servers that a run starts on a Ray cluster; none before ``start``."""

    def __init__(self, settings: SandboxSettings, run: RunDirectory) -> None:
        self._settings, self._run = settings, run
        self._hosts = PlacedHosts(run.placed_boxes)
        self._supervisor = Supervisor()
        self._said = ""

    def start(self) -> str:
        """Start the box servers and wait until boxes can be made. Returns where they are, in words. Raises
        ProgramFailed with the reason if that fails."""
        self._hosts.file.unlink(missing_ok=True)
        self._supervisor.start(self._program())
        while not self._hosts.file.exists():
            self._check()
            time.sleep(0.1)
        self._said = self._state()
        return self._said

    def check(self) -> list[str]:
        """Restart what died; return news in words. Raises ProgramFailed if it dies again and again."""
        news = [f"{name} died and was started again (see {self._run.log(name)})" for name in self._check()]
        if self._said and (said := self._state()) != self._said:
            self._said = said
            news.append(said)
        return news

    def stop(self) -> None:
        self._supervisor.stop()

    def _check(self) -> list[str]:
        try:
            return self._supervisor.check()
        except ProgramFailed as error:
            raise ProgramFailed(f'sandbox.hosts = ["{RAY}"]: {error}') from None

    def _state(self) -> str:
        urls, left_out = self._hosts.read()
        nodes = f"boxes on {len(urls)} node{'s' * (len(urls) != 1)} of the Ray cluster"
        return "; left out: ".join((nodes, *left_out))

    def _program(self) -> Program:
        chosen = self._settings.model_dump(include=set(_BOUNDS), exclude_defaults=True)
        bounds = [text for name, value in chosen.items() for text in ("--set", f"{name}={value}")]
        server = ["-m", "woodshed.cli", "boxes", "--backend", self._settings.backend, *bounds]
        key = key_file(self._hosts.key_file)
        argv = [
            "--file",
            str(self._hosts.file),
            "--key-file",
            str(key),
            "--key-variable",
            ADMIN_VARIABLE,
            "--",
            *server,
        ]
        return Program(
            _NAME,
            ["-m", "woodshed.cluster.ray_placing", *argv],
            self._run.log(_NAME),
            max_restarts=RESTARTS,
            env={"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
        )


@contextmanager
def placed_boxes(recipe: Recipe, run: RunDirectory, console: Console) -> Iterator[PlacedBoxes]:
    """Start the box servers on entry and stop them on exit; none are started if no stage is left to run."""
    boxes = PlacedBoxes(recipe.sandbox, run)
    try:
        if RAY in recipe.sandbox.hosts and any(run.stage_result(stage.name) is None for stage in plan(recipe, run)):
            with console.status("placing box servers on the Ray cluster"):
                where = boxes.start()
            console.print(where, soft_wrap=True, markup=False)
        yield boxes
    finally:
        boxes.stop()


_SECONDS = 180.0
"""Time without progress after which the start of a policy server fails, in seconds."""


@contextmanager
def served(recipe: Recipe, policy: Path) -> Iterator[tuple[RunDirectory, Supervisor]]:
    """Start a policy server; yield its folder (``server/address.json``, its log) and supervisor once it answers.

    The caller must call ``check`` of the supervisor now and then, which restarts programs that died. Raises
    ProgramFailed with the end of the server's log if it does not start.
    """
    supervisor = Supervisor()
    folder = RunDirectory(Path(tempfile.mkdtemp(prefix="woodshed-served-")))
    try:
        for program in server_programs(recipe, folder, policy):
            supervisor.start(program)
        clock = IdleClock(own=False)
        while not (folder.root / "server" / "ready.json").exists():
            supervisor.check()
            if clock.look() > _SECONDS:
                raise ProgramFailed(f"the policy server did not start: {last_words(folder.log('server'))}")
            time.sleep(0.2)
        yield folder, supervisor
    finally:
        supervisor.stop()
        shutil.rmtree(folder.root, ignore_errors=True)
