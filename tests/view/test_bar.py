"""Progress bars: on a terminal they draw, in a log file they are lines, and no text steers the terminal."""

from __future__ import annotations

import io
import threading

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
    monkeypatch.setattr(bar.Bar, "_repeat", lambda self: None)
    first, second = _shown(monkeypatch, terminal=False, seconds=0.0).splitlines()
    assert first == "0:00 1/3 toolz\ufffd]0;owned\ufffd [red]1.0"
    assert second == "0:00 2 boltons"


def test_a_log_shows_that_a_silent_step_goes_on(monkeypatch):
    monkeypatch.setattr(bar, "SECONDS_PER_LINE", 0.01)
    third = threading.Event()

    class Log(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if self.getvalue().count("toolz: running its tests") >= 3:
                third.set()
            return written

    out = Log()
    with Bar(Console(file=out, force_terminal=False, width=100)) as progress:
        progress(0, 0, "toolz: running its tests")
        assert third.wait(300)
    assert progress._repeater.is_alive() is False
    lines = out.getvalue().splitlines()
    assert all(line.endswith((" 0 starting", " 0 toolz: running its tests")) for line in lines)


def test_lines_are_not_one_per_step(monkeypatch):
    assert _shown(monkeypatch, terminal=False, seconds=3600.0) == ""


def test_a_bar_on_a_terminal(monkeypatch):
    shown = _shown(monkeypatch, terminal=True, seconds=0.0)
    assert "boltons" in shown
    assert "\x1b]0" not in shown
