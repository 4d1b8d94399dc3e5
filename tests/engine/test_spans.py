"""Cutting rows into runs: every active row once, long enough, and never dearer than the two naive ways."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from woodshed.engine.row_attention import RowSpan, cut_rows


def cost(spans: list[RowSpan], overhead: float) -> float:
    return sum((s.stop - s.start) * s.length + overhead for s in spans)


@given(
    st.dictionaries(st.integers(0, 60), st.integers(1, 500), max_size=40),
    st.sampled_from([0.0, 50.0, 400.0, 1e6]),
)
def test_spans_cover_the_active_rows(active, overhead):
    rows = sorted(active)
    spans = cut_rows(rows, [active[row] for row in rows], overhead)
    assert all(a.stop <= b.start for a, b in pairwise(spans))
    for row in rows:
        [span] = [s for s in spans if s.start <= row < s.stop]
        assert span.length >= active[row]
    assert cost(spans, overhead) <= sum(active.values()) + overhead * len(rows)


def test_infinite_overhead_is_one_span():
    assert cut_rows([2, 9], [5, 80], float("inf")) == [RowSpan(2, 10, 80)]


def test_no_overhead_reads_nothing_for_nothing():
    assert cut_rows([0, 1, 3], [5, 5, 9], 0.0) == [RowSpan(0, 2, 5), RowSpan(3, 4, 9)]
