"""Progress bars: on a terminal they draw, in a log file they are lines, and no text steers the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from woodshed.view import bar
from woodshed.view.bar import Bar


def _shown(monkeypatch, *, terminal: bool, seconds: float) -> str:
    monkeypatch.setattr(bar, "SECONDS_PER_LINE", seconds)
    out = io.StringIO()
    with Bar(Console(file=out, force_terminal=terminal, width=100)) as progress:
        progress(1, 3, "toolz\x1b]0;owned\x07 [red]1.0\nmore")
        progress(2, 0, "boltons")
    return out.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch):
    first, second = _shown(monkeypatch, terminal=False, seconds=0.0).splitlines()
    assert first == "0:00 1/3 toolz\ufffd]0;owned\ufffd [red]1.0"
    assert second == "0:00 2 boltons"


def test_lines_are_not_one_per_step(monkeypatch):
    assert _shown(monkeypatch, terminal=False, seconds=3600.0) == ""


def test_a_bar_on_a_terminal(monkeypatch):
    shown = _shown(monkeypatch, terminal=True, seconds=0.0)
    assert "boltons" in shown
    assert "\x1b]0" not in shown
