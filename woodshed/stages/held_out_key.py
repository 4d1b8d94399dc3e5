"""The secret from which a run draws other inputs to tests: kept in its folder, the same after a resume.

Which inputs they are is public but for this key, so a policy that trains long enough could learn their answers.
Only the processes that grade read it, on this host; no box is told. What is recorded is its digest.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from woodshed.grading.settings import GradingSettings
from woodshed.record.run_directory import DirectoryError, key_file

VARIABLE = "WOODSHED_HELD_OUT_KEY"
"""Environment variable with an explicit key; ``grading.held_out_key`` comes first."""

_FILE = "held_out.key"


def settle_key(settings: GradingSettings, folder: Path) -> None:
    """Put the key of a run into its folder: the explicit one, else one drawn for it.

    Raises DirectoryError where the folder has another one than the explicit one: rewards would change in the middle.
    """
    stated = _stated(settings)
    kept = with_key(settings, folder).held_out_key
    if stated and stated != kept:
        raise DirectoryError(
            f"{folder / _FILE} holds another key than grading.held_out_key or {VARIABLE} gives: leave the latter out "
            "to go on as before, or delete the file to grade by other inputs from now on"
        )


def with_key(settings: GradingSettings, folder: Path) -> GradingSettings:
    """``settings`` with the key of ``folder``, which gets one where it has none. DirectoryError if it is damaged."""
    path = key_file(folder / _FILE, _stated(settings))
    kept = path.read_text("utf-8").strip()
    if not kept:
        raise DirectoryError(f"{path} is empty: put the key back, or delete it to have another one drawn")
    return settings.model_copy(update={"held_out_key": kept})


def _stated(settings: GradingSettings) -> str:
    return (settings.held_out_key or os.environ.get(VARIABLE, "")).strip()


def key_digest(settings: GradingSettings) -> str:
    """What records show of a key: whether two evaluations were graded on the same inputs."""
    return hashlib.sha256(settings.held_out_key.encode()).hexdigest()[:12]
