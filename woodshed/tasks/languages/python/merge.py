"""Several changes of one text in one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def merge(before: str, changed: Sequence[str]) -> str | None:
    """``before`` with what each of ``changed`` makes other; None where two of them touch the same or adjacent lines.

    The lines from the first to the last difference are one edit.
    """
    lines = before.split("\n")
    edits = sorted(_edit(lines, text.split("\n")) for text in changed)
    if any(second[0] <= first[1] for first, second in pairwise(edits)):
        return None
    for start, end, new in reversed(edits):
        lines[start:end] = new
    return "\n".join(lines)


def _edit(before: list[str], after: list[str]) -> tuple[int, int, list[str]]:
    """(first line, line after the last, what stands there instead)."""
    most = min(len(before), len(after))
    head = next((i for i in range(most) if before[i] != after[i]), most)
    tail = next((i for i in range(most - head) if before[-1 - i] != after[-1 - i]), most - head)
    return head, len(before) - tail, after[head : len(after) - tail]
