"""Folder of downloads and of everything made from them, shared by all runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory() -> Path:
    """Return ``$WOODSHED_CACHE``, else ``$XDG_CACHE_HOME/woodshed``, else ``~/.cache/woodshed``.

    Without a writable home folder it is a folder of this user among the temporary files. Raises OSError, which says
    what to do, if no folder can be used.
    """
    if value := os.environ.get("WOODSHED_CACHE"):
        try:
            Path(value).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"WOODSHED_CACHE names {value}, which cannot be created ({error}); name another folder"
            ) from None
        return Path(value)
    try:
        usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "woodshed"
        usual.mkdir(parents=True, exist_ok=True)
        if os.access(usual, os.R_OK | os.W_OK | os.X_OK):
            return usual
    except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
        pass
    return _temporary()


def _temporary() -> Path:
    """Return this user's folder among the temporary files. Programs are loaded from the cache, so nobody else may own
    this folder or write to it."""
    place = Path(tempfile.gettempdir()) / f"woodshed-cache-{os.geteuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
        if place.is_dir() and not place.is_symlink() and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return place
        why = f"{place} belongs to others"
    except OSError as error:
        why = f"{place} cannot be created: {error}"
    raise OSError(f"the home folder is not writable, and {why}; set WOODSHED_CACHE to a folder for downloads")
