"""Plots show any name as it is."""

from __future__ import annotations

import warnings

import pytest

from woodshed.view.plots import bars, lines

NAMES = ["run_tests", "$x^$", "_hidden", "a" * 300, "<script>", "$", r"\frac{1}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_policy_chose_cannot_break_a_plot(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves = lines({name: ([1, 2], [0.0, 1.0]), "other": ([1, 2], [1.0, 0.0])}, x="step", y="share")
        grouped = bars({"before": {name: 0.5}, name: {name: 0.4}}, y="share")
    for page in (curves, grouped):
        assert page.startswith("<svg") and "<script" not in page
