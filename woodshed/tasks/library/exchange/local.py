"""The repositories that instances are about, in a folder of the user's."""

from __future__ import annotations

from pathlib import Path

from .instances import Instance


def find_repository(folder: Path, instance: Instance) -> Path | None:
    """The repository of an instance, bare or not; None where it is in none of ``places``."""
    return next((place for place in places(folder, instance) if _is_repository(place)), None)


def places(folder: Path, instance: Instance) -> list[Path]:
    """Where the repository of an instance may be, in the order of looking."""
    owner, name = instance.owner, instance.name
    stems = [f"{owner}__{name}", f"{owner}/{name}", name]
    return [folder / f"{stem}{end}" for stem in stems for end in (".git", "")]


def looked_for(folder: Path, instance: Instance) -> str:
    """For a person: the places that were looked at."""
    names = ", ".join(place.relative_to(folder).as_posix() for place in places(folder, instance))
    return f"{folder} has none of {names}; clone {instance.owner}/{instance.name} there"


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())
