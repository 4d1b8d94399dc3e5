"""Errors that only a person can fix, as opposed to errors that are worth a retry."""

from __future__ import annotations

import os
from pathlib import Path

from woodshed.recipe.load import RecipeError
from woodshed.record.run_directory import DirectoryError
from woodshed.record.task import TaskError
from woodshed.rl.algorithms import AlgorithmError
from woodshed.rl.conservation import ConservationError
from woodshed.rl.hints import HintError
from woodshed.rl.ledger import LedgerError, OutOfTasks
from woodshed.rollout.agent import ProgramFailed
from woodshed.rollout.failures import RunFailing, RunPaused
from woodshed.rollout.rewards import RewardError
from woodshed.tasks.packages.index import PackageError

from .programs import ProgramError

_LOW = 4 << 20
_SIGNS = ("No space left on device", "disk is full", "Disk quota exceeded")


class StageFailed(Exception):
    """A stage cannot do its work, and trying again would not help; the message says why."""


HOPELESS = (
    StageFailed,
    RecipeError,
    TaskError,
    PackageError,
    OutOfTasks,
    DirectoryError,
    ProgramError,
    ProgramFailed,
    RewardError,
    AlgorithmError,
    RunFailing,
    RunPaused,
    ConservationError,
    LedgerError,
    HintError,
)
"""Errors of a stage for which a retry is useless; only their message is shown, without a traceback."""


def disk_problem(folder: Path, symptom: str = "") -> str | None:
    """Return what to do if the disk of ``folder`` is full or the error text ``symptom`` says so; else None."""
    disk = os.statvfs(next(p for p in (folder, *folder.parents) if p.exists()))
    free = disk.f_bavail * disk.f_frsize
    no_inodes = disk.f_files > 0 and disk.f_favail == 0
    writable = disk.f_blocks > 0 and not disk.f_flag & os.ST_RDONLY  # unlike /proc and a CD, which have no free space
    full = writable and (free <= _LOW or no_inodes)
    if not full and not any(sign in symptom for sign in _SIGNS):
        return None
    left = "no more files can be made" if no_inodes else f"{free >> 20} MiB free"
    return (
        f"{folder}: the disk is full ({left}); make space and give the same command again: "
        "what is finished is kept, and it goes on where it was"
    )
