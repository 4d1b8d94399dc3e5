"""Sizes of published benchmarks, to set our own beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Medians as printed by the source: a number, or the range over the suites that it groups."""

    name: str
    changed_lines: str
    prompt_chars: str
    source: str


_REPORT = "Composer 2 Technical Report (Cursor, arXiv:2603.24477), section 5"

BENCHMARKS = (
    Published("SWE-bench (Verified, Multilingual)", "7-10", "1185-3055", _REPORT),
    Published("CursorBench", "181", "390", _REPORT),
)
"""The report gives 7 to 10 changed lines for SWE-bench Verified and Multilingual, and 1,185 to 3,055 characters of
prompt for the public suites that it compares. It says nothing about files and required tests.
"""
