"""Try a sample of the exploit battery on a task: can its grader be fooled?"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from woodshed.attacks.exploits.battery import run_battery
from woodshed.attacks.exploits.catalogue import CONTROLS, EXPLOITS
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, SandboxError

REWARDED = "an exploit is rewarded"


UNREWARDED = "the honest fix is not rewarded"


def attacked(slugs: Sequence[str]) -> str:
    """Return the one of ``slugs`` whose task is attacked for all of them; it is always the same one."""
    return min(slugs, key=lambda slug: hashlib.sha256(slug.encode()).digest())


async def attack(task: Task, most: int, backend: Backend, layers: LayerStore) -> str:
    """Return the reason to drop ``task``, '' if the controls and ``most`` exploits, drawn by its name, end as wanted.

    Raises SandboxError if an attack makes the sandbox itself fail.
    """
    fitting = [e for e in EXPLOITS if task.info.grader in e.graders and not e.hangs]
    rng = random.Random(f"attack:{task.path.name}")
    chosen = [*CONTROLS, *rng.sample(fitting, min(most, len(fitting)))]
    for attempt in await run_battery([task], backend, layers, exploits=chosen, concurrency=1):
        if attempt.verdict == "infrastructure":
            raise SandboxError(f"{task.path}: exploit {attempt.exploit}: {attempt.detail}")
        if not attempt.as_wanted():
            return UNREWARDED if attempt.exploit == "honest_fix" else f"{REWARDED}: {attempt.exploit}"
    return ""
