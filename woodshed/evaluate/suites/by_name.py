"""Benchmarks of others by the name that a source begins with (``exercism:PATH``)."""

from __future__ import annotations

from woodshed.tasks.sources.factory import BuildCollection

from .exercises.build import build_exercises
from .exercises.read import READERS
from .refactorbench.build import build_refactorbench
from .refactorbench.read import NAME

COLLECTIONS: dict[str, BuildCollection] = {**dict.fromkeys(READERS, build_exercises), NAME: build_refactorbench}
