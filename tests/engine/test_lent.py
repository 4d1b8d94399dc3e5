"""An engine computes with the trainer's cores while the trainer waits, and gives them back."""

from __future__ import annotations

import asyncio
import fcntl
import sys
from pathlib import Path
from typing import Any

import torch

from woodshed.engine import lent
from woodshed.engine.lent import LentCores
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Sampling
from woodshed.engine.settings import EngineSettings

from .models import decoder, prompt, run

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


def test_cores_are_lent_by_a_trainer_that_waits_or_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "trainer.lock"

    async def main() -> None:
        cores = LentCores(lock, 1, 2)
        engine = LocalEngine(decoder(), settings=EngineSettings(threads=1), cores=cores)
        threads = list[int]()
        iterate = engine._iterate

        def watched() -> Any:
            threads.append(torch.get_num_threads())
            return iterate()

        engine._iterate = watched  # type: ignore[method-assign]

        async def sample() -> tuple[list[int], set[int], int]:
            """Tokens, numbers of threads, iterations with lent cores."""
            await asyncio.sleep(2 * lent.LOOK_SECONDS)
            threads.clear()
            before = engine.stats()["lent_iterations"]
            done = await engine.generate(prompt(8), Sampling(max_tokens=6, seed=3))
            assert len(threads) >= 6
            return done.tokens, set(threads), engine.stats()["lent_iterations"] - before

        tokens, used, lent_count = await sample()
        assert used == {2} and lent_count == len(threads)
        pipe = asyncio.subprocess.PIPE
        trainer = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, lock, stdin=pipe, stdout=pipe)
        try:
            assert trainer.stdout is not None and await trainer.stdout.readline() == b"held\n"
            assert await sample() == (tokens, {1}, 0)
        finally:
            trainer.kill()
            await trainer.communicate()
        assert await sample() == (tokens, {2}, len(threads))
        await engine.close()

    run(main())


def test_looking_never_keeps_a_trainer_from_its_cores(tmp_path: Path) -> None:
    cores = LentCores(tmp_path / "lock", 1, 1)
    assert cores.use()
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    cores.close()
    assert not LentCores(tmp_path / "no folder" / "lock", 1, 1).use()
