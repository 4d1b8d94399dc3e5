"""The secret from which a run draws other inputs to tests: kept in its folder, the same after a resume.

Which inputs they are is public but for this key, so a policy that trains long enough could learn their answers.
Only the processes that grade read it, on this host; no box is told. What is recorded is its digest.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..grading.settings import GradingSettings
from .directory import DirectoryError, key_file

VARIABLE = "WOODSHED_HELD_OUT_KEY"
"""Environment variable with an explicit key; ``grading.held_out_key`` comes first."""

_FILE = "held_out.key"


def with_key(settings: GradingSettings, folder: Path) -> GradingSettings:
    """``settings`` with the key of ``folder``: the explicit one that it was started with, else one drawn for it.

    Raises DirectoryError where another explicit one is given now: rewards would change in the middle.
    """
    stated = settings.held_out_key or os.environ.get(VARIABLE, "").strip()
    path = key_file(folder / _FILE, stated)
    kept = path.read_text("utf-8").strip()
    if not kept:
        raise DirectoryError(f"{path} is empty: put the key back, or delete it to have another one drawn")
    if stated and stated != kept:
        raise DirectoryError(
            f"{path} holds another key than grading.held_out_key or {VARIABLE} gives: leave the latter out to go on as "
            "before, or delete the file to grade by other inputs from now on"
        )
    return settings.model_copy(update={"held_out_key": kept})


def key_digest(settings: GradingSettings) -> str:
    """What records show of a key: whether two evaluations were graded on the same inputs."""
    return hashlib.sha256(settings.held_out_key.encode()).hexdigest()[:12]
