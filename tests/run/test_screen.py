"""What a run shows of its stages: one table on a terminal, lines in a log file."""

from __future__ import annotations

import io
import json
import re
import time

import pytest
from rich.console import Console

from woodshed.record.run_directory import RunDirectory
from woodshed.run import screen
from woodshed.run.curves import CurveWatch
from woodshed.run.plan import Stage
from woodshed.run.screen import screen_for

STAGES = [Stage(name, title, (), list, ()) for name, title in [("corpus", "write corpus"), ("rl", "reinforce")]]


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


def _show(run: RunDirectory, *, terminal: bool) -> str:
    """The first stage begins, gets on and ends, a program dies, the second begins."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with screen_for(run, STAGES, CurveWatch(run.root, None), console) as shown:
        first, second = (s.name for s in STAGES)
        running = {first: (STAGES[0], None, time.monotonic())}
        shown.update(running, set())
        run.write_progress(first, 3, 7, "files [read]")
        shown.update(running, set())
        shown.notice("rl/trainer died and was started again")
        run.finish_stage(first, {"seconds": 65.0, "note": "7 files"})
        shown.update({second: (STAGES[1], None, time.monotonic())}, {first})
        shown.update({second: (STAGES[1], None, time.monotonic())}, {first})
    return out.getvalue()


def test_lines_where_there_is_no_terminal(run, monkeypatch):
    monkeypatch.setattr(screen, "SECONDS_PER_LINE", 0.0)
    lines = [re.sub(r"\d+:\d\d", "M:SS", line[9:]) for line in _show(run, terminal=False).splitlines()]
    assert lines == [
        "now   write corpus",
        "      write corpus, M:SS  3/7  files [read]",
        "rl/trainer died and was started again",
        "done  write corpus, M:SS  7 files",
        "now   reinforce",
        "      reinforce, M:SS",
    ]


def test_progress_is_a_line_now_and_then(run, monkeypatch):
    monkeypatch.setattr(screen, "SECONDS_PER_LINE", 3600.0)
    shown = _show(run, terminal=False)
    assert "files [read]" not in shown
    assert shown.count("reinforce") == 1


def test_a_table_on_a_terminal(run):
    shown = _show(run, terminal=True)
    for text in ("done", "1:05", "7 files", "died and was started again", "reinforce"):
        assert text in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_policy_says_controls_no_terminal(run, monkeypatch, terminal):
    """The note of RL has the names of the tools that the policy called, which may be any text."""
    monkeypatch.setattr(screen, "SECONDS_PER_LINE", 0.0)
    out = io.StringIO()
    with screen_for(run, STAGES, CurveWatch(run.root, None), Console(file=out, force_terminal=terminal)) as shown:
        running = {"rl": (STAGES[1], None, time.monotonic())}
        shown.update(running, set())
        run.write_progress("rl", 1, 2, "calls: \x1b]0;evil\n12:00:00 done  reinforce \ud800")
        shown.notice("alarm tools: \x1b]0;evil")
        shown.update(running, set())
    text = out.getvalue()
    assert "]0;evil" in text and "\x1b]" not in text and "\ud800" not in text
    assert not any(line.startswith("12:00:00") for line in text.splitlines())


def test_a_table_draws_the_curve_of_a_stage(run):
    folder = run.root / "metrics"
    folder.mkdir()
    rows = [{"step": step, "pass_rate": step / 10} for step in range(1, 9)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "pass rate ▁▂▃▄▅▆▇█ 0.8" in _show(run, terminal=True)
