"""Settings of the sandboxes that a run uses."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from woodshed.record.settings import Settings

from .egress.rules import parse_rule
from .protocol import Egress, Limits


class SandboxSettings(Settings):
    """Which backend makes the boxes, and what one box may use."""

    backend: Literal["namespace", "gvisor", "microvm", "docker"] = "namespace"
    """What isolates a box. ``namespace`` needs Linux with user namespaces and nothing else."""

    root: Path | None = None
    """Folder for the backend's own state while it runs; the system's temporary folder if not given."""

    max_starting: int = Field(default=16, ge=1)
    """Boxes that may be under construction at once; more only makes each of them wait for the same processors."""

    memory: int | None = Field(default=2 << 30, ge=64 << 20)
    """Bytes of memory of one box (address space of each process, and all of them together); none for no limit."""

    processes: int | None = Field(default=256, ge=1)
    """Processes and threads in one box; none for no limit."""

    cpu_seconds: float | None = Field(default=600.0, gt=0)
    """Processor seconds of one process; none for no limit."""

    file_size: int | None = Field(default=256 << 20, ge=1 << 20)
    """Bytes of the largest file a box can write; none for no limit."""

    disk: int | None = Field(default=512 << 20, ge=1 << 20)
    """Bytes that a box can write in all (held in memory); none for the system's own bound."""

    allow: tuple[str, ...] = ()
    """Hosts that an agent's boxes may reach: ``HOST``, ``*.DOMAIN`` or ``HOST:PORT``. They go through a proxy that
    refuses all others and logs every request to ``egress.jsonl``. Boxes that grade never reach anything."""

    allow_private: bool = False
    """Whether names in ``allow`` may stand for addresses that are not public, as a company's mirror has."""

    @field_validator("allow")
    @classmethod
    def _rules(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            parse_rule(rule)
        return value

    @model_validator(mode="after")
    def _possible(self) -> SandboxSettings:
        if self.allow and self.backend != "namespace":
            raise ValueError(f"the {self.backend} backend gives boxes no network: leave out allow, or use namespace")
        return self

    def egress(self) -> Egress | None:
        """What agents' boxes may reach, as backends take it."""
        return Egress(self.allow, private=self.allow_private) if self.allow else None

    def limits(self) -> Limits:
        """The limits as backends take them."""
        return Limits(self.memory, self.processes, self.cpu_seconds, self.file_size, self.disk)
