"""Why a candidate became no task."""

from __future__ import annotations


class Rejected(Exception):
    """The candidate is no good task; the message is the reason, as counted in the yield table."""


class Untold(Rejected):
    """For some of the changed ``functions`` (``CoveredFunction.place``) no value tells a fix from a guess."""

    def __init__(self, why: str, functions: tuple[str, ...]) -> None:
        super().__init__(why)
        self.functions = functions
