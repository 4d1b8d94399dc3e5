"""Plots show any name as it is."""

from __future__ import annotations

import warnings

import pytest

from woodshed.view.plots import _figure, _label, bars, lines, scatter

NAMES = ["run_tests", "$x^$", "_hidden", "a" * 300, "<script>", "$", r"\frac{1}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_policy_chose_cannot_break_a_plot(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves = lines({name: ([1, 2], [0.0, 1.0]), "other": ([1, 2], [1.0, 0.0])}, x="step", y="share")
        grouped = bars({"before": {name: 0.5}, name: {name: 0.4}}, y="share")
    for page in (curves, grouped):
        assert page.startswith("<svg") and "<script" not in page


def test_points_upon_each_other_keep_their_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = scatter({name: (1.0, 0.5) for name in NAMES}, [NAMES[0]], x="tokens", y="pass@1")
    assert page.count("legend_") > 0 and all(
        f"<!-- {name} -->" in page for name in ("run_tests", "$x^$", "\u200b_hidden")
    )


def test_a_long_name_of_an_axis_is_not_cut_off() -> None:
    figure, axis = _figure((5.2, 2.8))
    axis.plot([0, 1], [0.9992, 1.0])
    _label(axis, "ratio to the sampling policy, percentiles of all sampled tokens", "step")
    figure.draw_without_rendering()
    title = axis._left_title.get_window_extent()
    assert figure.bbox.x0 <= title.x0 and title.x1 <= figure.bbox.x1 and title.y1 <= figure.bbox.y1
