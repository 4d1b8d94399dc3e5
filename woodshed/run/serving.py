"""A policy served for one command: a server in a folder of its own, gone when the command is."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from woodshed.cluster.idle import IdleClock
from woodshed.cluster.supervisor import ProgramFailed, Supervisor, last_words
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.stages.servers import server_programs

_SECONDS = 180.0
"""Without progress."""


@contextmanager
def served(recipe: Recipe, policy: Path) -> Iterator[tuple[RunDirectory, Supervisor]]:
    """The folder of the server (``server/address.json``, its log), when it answers. Call ``check`` of the supervisor
    now and then: it starts again what died. Raises ProgramFailed with the server's own words where it does not start.
    """
    supervisor = Supervisor()
    folder = RunDirectory(Path(tempfile.mkdtemp(prefix="woodshed-served-")))
    try:
        for program in server_programs(recipe, folder, policy, weights=False):
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
