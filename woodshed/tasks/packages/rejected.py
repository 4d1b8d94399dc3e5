"""Why a candidate became no task."""

from __future__ import annotations


class Rejected(Exception):
    """The candidate is no good task; the message is the reason, as counted in the yield table."""
