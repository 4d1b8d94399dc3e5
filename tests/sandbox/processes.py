"""Looking at processes of the machine."""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """Processes below ``pid``, itself included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def state(pid: int) -> str:
    """Its letter in /proc; '' for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
