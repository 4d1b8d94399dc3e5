"""Which runs of cache rows one attention product covers. Imports no torch.

A product over rows ``[start, stop)`` reads ``stop - start`` rows up to the longest active one: idle rows in between and
the padding of short rows are read for nothing. A further product costs a fixed time. Rows are cut into runs where that
is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSpan:
    """Cache rows ``[start, stop)``, read up to ``length`` tokens."""

    start: int
    stop: int
    length: int


def cut_rows(rows: Sequence[int], lengths: Sequence[int], overhead: float) -> list[RowSpan]:
    """Cut strictly increasing active ``rows`` with their ``lengths`` into spans.

    ``overhead`` is what one more span costs, in token reads (one row's key and value at one position). Greedy: a row
    joins the span before it if that wastes no more than starting a new one.
    """
    spans: list[RowSpan] = []
    start = stop = longest = 0
    for row, length in zip(rows, lengths):
        if stop:
            joined = (row + 1 - start) * max(longest, length)
            if joined <= (stop - start) * longest + length + overhead:
                stop, longest = row + 1, max(longest, length)
                continue
            spans.append(RowSpan(start, stop, longest))
        start, stop, longest = row, row + 1, length
    if stop:
        spans.append(RowSpan(start, stop, longest))
    return spans
