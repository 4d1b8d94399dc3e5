"""Samples per second, and how often to say so."""

from __future__ import annotations

from woodshed.stages.pace import Every, Pace


def test_every_is_true_once_a_while() -> None:
    now = 0.0
    due = Every(2.0, clock=lambda: now)
    for at, expected in (
        (0.0, False),
        (1.9, False),
        (2.0, True),
        (3.9, False),
        (9.0, True),
        (9.1, False),
        (11.0, True),
    ):
        now = at
        assert due() is expected


def test_pace_is_that_of_the_window_and_starts_where_a_resumed_stage_starts() -> None:
    now = 0.0
    pace = Pace(window=10.0, clock=lambda: now)
    assert pace.at(500) == ""
    for second in range(1, 41):
        now = float(second)
        said = pace.at(500 + 2 * second if second <= 20 else 540 + 5 * (second - 20))
        if second in (1, 20):
            assert said == "2.0 samples/s"
    assert said == "5.0 samples/s"
    now += 1
    assert pace.at(3) == ""
    now += 1
    assert pace.at(4) == "1.0 samples/s"
    now += 9
    assert pace.at(5) == "0.2 samples/s"
