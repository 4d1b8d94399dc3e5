"""Benchmarks of others by the name that a source begins with (``exercism:PATH``)."""

from __future__ import annotations

from woodshed.evaluate.suites.refactorbench.build import build_refactorbench
from woodshed.evaluate.suites.refactorbench.read import NAME
from woodshed.tasks.pipeline.build import BuildCollection

from .exercises import READERS, build_exercises

COLLECTIONS: dict[str, BuildCollection] = {**dict.fromkeys(READERS, build_exercises), NAME: build_refactorbench}
