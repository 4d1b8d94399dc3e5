"""Committed lines are traced to the session that wrote them last, of the same repository and before the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tasks.sources import repos
from woodshed.evaluate.builder.sessions import Session, Written, session_of, written_by
from woodshed.evaluate.builder.settings import TraceSettings
from woodshed.evaluate.builder.trace import added_lines, identity, trace, unix
from woodshed.record.trajectory import ToolEvent, Trajectory
from woodshed.tasks.packages.history import LOG_FIRST_PARENT, Commit, merged_message, parse_log
from woodshed.tasks.sources.repository import Objects, write_bundle

HERE = "https://git.example.invalid/team/prices.git"
LINES = ("def dearest(prices):", "    best = max(prices)", "    return best, list(prices).index(best)")
DAY = 86400.0
NOON = unix("2026-03-02T12:00:00Z")


def session(id: str, started: float, *lines: str, path: str = "src/prices/__init__.py", at: str = HERE) -> Session:
    return Session(id, at, started, started + 60, (f"message of {id}",), tuple(Written(path, line) for line in lines))


def commit(*lines: str, id: str = "a", date: str = "2026-03-02T12:00:00Z") -> tuple[Commit, list[Written]]:
    made = Commit(id * 40, "0" * 40, "A commit", ("src/prices/__init__.py",), len(lines), date)
    return made, [Written("src/prices/__init__.py", line) for line in lines]


def origin(*sessions: Session, **named: object) -> list[str]:
    found = trace([commit(*LINES)], sessions, [HERE])
    return [each.session.id for each in found]


def test_the_last_session_before_the_commit_wrote_the_lines() -> None:
    first, second = session("first", NOON - 3 * DAY, *LINES), session("second", NOON - DAY, *LINES)
    late = session("late", NOON + 60, *LINES)
    assert origin(first, second, late) == ["second"]
    assert origin(late) == [] and origin(session("long ago", NOON - 31 * DAY, *LINES)) == []
    assert origin(session("same second", NOON + 0.6, *LINES)) == ["same second"], "git notes whole seconds"


def test_only_sessions_of_the_repository_count() -> None:
    other = session("other", NOON - DAY, *LINES, at="https://git.example.invalid/team/other.git")
    assert origin(other) == [] and origin(session("unnamed", NOON - DAY, *LINES, at="")) == []
    assert origin(session("ssh", NOON - DAY, *LINES, at="git@git.example.invalid:team/prices.git")) == ["ssh"]


def test_only_lines_of_the_same_file_count_and_spaces_do_not() -> None:
    assert origin(session("s", NOON - DAY, *LINES, path="src/other.py")) == []
    assert origin(session("s", NOON - DAY, *LINES, path="/home/x/work/src/prices/__init__.py")) == ["s"]
    formatted = [line.replace("    ", "\t").replace(", ", ",") for line in LINES]
    assert origin(session("s", NOON - DAY, *formatted)) == ["s"]


def test_a_commit_needs_enough_lines_of_a_session() -> None:
    half = session("half", NOON - DAY, LINES[0])
    assert trace([commit(*LINES)], [half], [HERE]) == []
    (found,) = trace([commit(*LINES)], [half], [HERE], TraceSettings(min_share=0.3, min_lines=1))
    assert (found.lines, found.added, round(found.share, 2)) == (1, 3, 0.33)
    shared = [session("most", NOON - DAY, *LINES[:2]), session("rest", NOON - DAY, LINES[2])]
    (found,) = trace([commit(*LINES)], shared, [HERE], TraceSettings(min_lines=2))
    assert found.session.id == "most" and found.others == ("rest",)


def test_lines_that_anybody_writes_are_not_traced() -> None:
    common = ("    else:", "    return None", "", "        )", "    try:", "    pass")
    assert trace([commit(*common)], [session("s", NOON - DAY, *common)], [HERE]) == []
    (found,) = trace([commit(*LINES, *common)], [session("s", NOON - DAY, *LINES)], [HERE])
    assert found.added == 3


def test_a_written_line_is_committed_once() -> None:
    one, again = (
        commit(*LINES, id="a", date="2026-03-02T12:00:00Z"),
        commit(*LINES, id="b", date="2026-03-05T12:00:00Z"),
    )
    (found,) = trace([again, one], [session("s", NOON - DAY, *LINES)], [HERE])
    assert found.commit.id == "a" * 40


def test_of_the_commits_of_a_session_the_largest_is_kept() -> None:
    more = ("def spread(prices):", "    high, low = max(prices), min(prices)", "    return high - low", "# spread")
    small, large = commit(*LINES, id="a"), commit(*more, id="b", date="2026-03-03T12:00:00Z")
    (found,) = trace([small, large], [session("s", NOON - DAY, *LINES, *more)], [HERE])
    assert found.commit.id == "b" * 40 and found.lines == 4


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"path": "a.py", "old_string": "x = 1\ny = 2", "new_string": "x = 1\nz = 3"}, ["z = 3"]),
        ({"file_path": "a.py", "content": "x\ny\n"}, ["x", "y"]),
        ({"path": "a.py", "command": "str_replace", "old_str": "", "new_str": "x\nx"}, ["x", "x"]),
        ({"file_path": "a.py", "edits": [{"old_string": "a", "new_string": "b"}, {"new_string": "c"}]}, ["b", "c"]),
        (
            {"patch": "*** Begin Patch\n*** Update File: a.py\n@@\n-old\n+new\n+++more\n*** End Patch"},
            ["new", "++more"],
        ),
        ({"path": "a.py", "line": 3, "text": "x"}, ["x"]),
        ({"path": "a.py"}, []),
        ({"command": "echo x > a.py"}, []),
        (None, []),
    ],
)
def test_the_lines_of_an_edit(arguments: dict[str, object] | None, lines: list[str]) -> None:
    found = list(written_by(arguments))
    assert [each.line for each in found] == lines and all(each.path == "a.py" for each in found)


def test_only_live_trajectories_and_accepted_edits_are_sessions() -> None:
    edit = {"path": "a.py", "old_string": "a", "new_string": "value = compute()"}
    events = [ToolEvent(1, "edit_file", edit, "", "no_match"), ToolEvent(2, "edit_file", edit, "ok")]
    live = Trajectory(
        id="t", task="", group="", source="live", harness_hash="", policy="p", status="submitted", events=events,
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "do it"}],
        labels={"repository": HERE}, started=5.0, ended=9.0,
    )  # fmt: skip
    found = session_of(live)
    assert found is not None and found.asked == ("do it",) and found.repository == HERE
    assert [each.line for each in found.written] == ["value = compute()"]
    assert session_of(replace(live, source="train")) is None


def test_a_report_of_an_error_is_what_the_user_asks_for() -> None:
    said = ["Error: split(-1, 3) loses a cent", "error: no call: every reply must call a tool", "Thanks"]
    live = Trajectory(
        id="t",
        task="",
        group="",
        source="live",
        harness_hash="",
        policy="p",
        status="submitted",
        messages=[{"role": "user", "content": text} for text in said],
        labels={"repository": HERE},
    )
    found = session_of(live)
    assert found is not None and found.asked == (said[0], "Thanks")


def test_names_of_a_repository() -> None:
    forms = ("https://me:secret@Git.example.invalid/team/prices.git", "git@git.example.invalid:team/prices", HERE + "/")
    assert {identity(form) for form in forms} == {"git.example.invalid/team/prices"}
    assert identity("/home/x/prices/.git") == identity("file:///home/x/prices") == "/home/x/prices"


def test_added_lines_of_a_real_diff(tmp_path: Path) -> None:
    """Also those that look like the head of a diff."""
    folder = tmp_path / "r"
    first = repos.repository(folder, {"a.py": b"one\ntwo\nthree\n", "gone.py": b"x\n"})
    repos.write(folder, {"a.py": b"one\n++ 2\n@@ -1 +1 @@\nthree\n", "new folder/b.py": b"no newline"})
    repos.git(folder, "rm", "-q", "gone.py")
    repos.git(folder, "add", "-A")
    repos.git(folder, "commit", "-q", "-m", "two")
    commit = repos.git(folder, "rev-parse", "HEAD")
    write_bundle(str(folder), commit, tmp_path / "bundle")
    objects = Objects(tmp_path / "bundle")
    try:
        found = list(added_lines(objects.diff(first, commit)))
        assert objects.roots(commit) == [first]
    finally:
        objects.close()
    assert found == [Written("a.py", "++ 2"), Written("a.py", "@@ -1 +1 @@"), Written("new folder/b.py", "no newline")]


def test_a_merge_is_one_change_with_its_title(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    base = repos.repository(folder, {"a.py": b"one\n"})
    repos.git(folder, "checkout", "-q", "-b", "branch")
    for number in (2, 3):
        repos.write(folder, {"a.py": b"one\n" * number})
        repos.git(folder, "commit", "-q", "-a", "-m", f"step {number}")
    repos.git(folder, "checkout", "-q", "-")
    repos.git(folder, "merge", "-q", "--no-ff", "branch", "-m", "Merge branch 'branch' into 'main'\n\nGrow a\n\nBody")
    merge = repos.git(folder, "rev-parse", "HEAD")
    write_bundle(str(folder), merge, tmp_path / "bundle")
    objects = Objects(tmp_path / "bundle")
    try:
        (found,) = objects.log(merge, first_parent=True)
        steps = objects.log(merge)
    finally:
        objects.close()
    assert (found.id, found.parent, found.message, found.lines) == (merge, base, "Grow a\n\nBody", 2)
    assert found.date.endswith("Z") and unix(found.date) > 0
    assert [each.message for each in steps] == ["step 3", "step 2"]
    assert (
        merged_message("Merge branch 'x'") == "Merge branch 'x'"
        and merged_message("Merge sort\n\nfast") == "Merge sort\n\nfast"
    )
    assert parse_log(b"") == [] and "--first-parent" in LOG_FIRST_PARENT
