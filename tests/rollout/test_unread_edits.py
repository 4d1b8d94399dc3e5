"""Edits of files whose text the agent has not seen: what shows a file, and what only names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory
from woodshed.rollout.rewards import load_term

NO = Outcome(resolved=False)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path, "tests/toy", "repair it", TaskInfo(), {})


def episode(*events: ToolEvent) -> Trajectory:
    return Trajectory("i", "t", "g", "train", "h", "p", "submitted", events=list(events))


def call(name: str, result: str = "", error: str | None = None, **arguments: Any) -> ToolEvent:
    return ToolEvent(0, name, arguments, result, error)


EDIT = call("edit_line", path="pkg/a.py", line=1, text="x")


def test_edits_of_unread_files(task: Task) -> None:
    term = load_term("unread_edit")
    edit = call("edit_line", path="pkg/a.py", line=1, text="x")
    assert term(task, episode(edit), NO) == -1
    assert term(task, episode(edit, edit), NO) == -1  # the first showed it
    for shown in (
        call("read_file", path="./pkg/a.py"),
        call("grep", "pkg/a.py:1:x", pattern="x"),
        call("run_command", command="sed -n 1,9p pkg/a.py"),
        call("write_file", path="pkg/a.py", content=""),
    ):
        assert term(task, episode(shown, edit), NO) == 0
    named = call("list_dir", "pkg/a.py\npkg/b.py", path="pkg")
    assert term(task, episode(named, edit), NO) == -1  # a listing shows no text
    for command in ("cd pkg && cat a.py", "cat pkg/*.py", "sed -n 3p 'pkg/a.py'"):
        assert term(task, episode(call("run_command", command=command), edit), NO) == 0, command
    other = call("grep", "pkg/aa.py:1:x\nmy/pkg/a.py:2:x", pattern="x")
    assert term(task, episode(other, edit), NO) == -1
    failed = call("read_file", "error: no_such_file", "no_such_file", path="pkg/a.py")
    refused = call("edit_line", "", "no_such_line", path="pkg/b.py", line=1, text="x")
    assert term(task, episode(failed, refused), NO) == 0
    assert term(task, episode(failed, edit), NO) == -1, "a failed call shows no text"
    many = [call("edit_file", path=f"{n}.py", old_string="a", new_string="b") for n in range(9)]
    assert term(task, episode(*many), NO) == -5
    assert load_term("unread_edit", {"most": 2})(task, episode(*many), NO) == -2


SHOW = """\
cat pkg/a.py
cat ./pkg/a.py | head -5
cat /workspace/pkg/a.py
cat 'pkg/a.py' "b c.py"
cat pkg/*.py
head -20 p*/[ab].py
cd pkg && cat a.py
cd pkg && cat *.py
cd tests && cat ../pkg/a.py
sed -n 1,9p pkg/a.py
grep -n def pkg/a.py
git diff pkg/a.py
git show HEAD:pkg/a.py
find . -name '*.py' | xargs cat
find pkg -name '*.py' -exec head -50 {} +
for f in pkg/*.py; do cat $f; done
find pkg -type f | xargs cat
f=pkg/a.py; cat $f
cat $(git ls-files 'pkg/*.py')
python -c "print(open('pkg/a.py').read())"
python - <<E\\nprint(open('pkg/a.py').read())\\nE
cat > pkg/a.py <<E\\nx = 1\\nE
printf 'x' > pkg/a.py"""
NAME_ONLY = """\
find . -name '*.py'
find . -name a.py
find pkg -name '*.py' -exec wc -l {} +
ls *
ls pkg/a.py
echo '*'
echo pkg/a.py
git add *
git add pkg/a.py
git status pkg/a.py
rm -rf x/* ; true
python -m pytest *
python pkg/a.py
wc -l pkg/a.py
cat *
cat a.py
cat *.py
cat '*/*/a.py'
cat a.py  # pkg/a.py
grep -rn zzz *
grep -l def pkg/a.py
grep -rc def pkg/*
grep pkg/a.py README.md
sed -i s/x/y/ pkg/a.py
cp pkg/a.py pkg/b.py
for f in pkg/*.py; do echo $f; done
find . -name '*.py' | xargs wc -l
find . -name '*.md' | xargs cat
find tests -type f | xargs cat
cat README.md; ls pkg/a.py"""


@pytest.mark.parametrize("command", SHOW.splitlines())
def test_commands_that_show_a_file(command: str, task: Task) -> None:
    shown = call("run_command", "def f(): ...", command=command.replace("\\n", "\n"))
    assert load_term("unread_edit")(task, episode(shown, EDIT), NO) == 0


@pytest.mark.parametrize("command", NAME_ONLY.splitlines())
def test_commands_that_only_name_it(command: str, task: Task) -> None:
    named = call("run_command", "./pkg/a.py\npkg/a.py:3\npkg/a.py", command=command)
    assert load_term("unread_edit")(task, episode(named, EDIT), NO) == -1


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("grep -rn def .", "./pkg/a.py:3:def f():"),
        ("grep -r def .", "./pkg/a.py:def f():"),
        ("git grep def", "pkg/a.py:def f():"),
        ("rg -n def /workspace", "/workspace/pkg/a.py:3:def f():"),
        ("grep -n -B1 def pkg/*", "pkg/a.py-2-\npkg/a.py:3:def f():"),
        ("cd pkg; grep -n def *", "a.py:3:def f():"),
        ("python -m pytest", "pkg/a.py:3: ValueError"),
    ],
)
def test_lines_that_are_quoted_with_their_place(command: str, result: str, task: Task) -> None:
    term = load_term("unread_edit")
    assert term(task, episode(call("run_command", result, command=command), EDIT), NO) == 0
    for other in (result.replace("a.py", "aa.py"), result.replace("a.py:", "a.py.orig:").replace("a.py-", "a.pyc-")):
        assert term(task, episode(call("run_command", other, command=command), EDIT), NO) == -1


def test_tools_that_show_no_text(task: Task) -> None:
    term = load_term("unread_edit")
    for tool in ("list_dir", "glob", "read_lints", "grep"):
        assert term(task, episode(call(tool, "[no match]", path="pkg/a.py"), EDIT), NO) == -1, tool
    assert term(task, episode(call("my_module_view", "x", path="pkg/a.py"), EDIT), NO) == 0, "a tool of the user's own"
    other = call("run_command", "pkg/a.py:x", command="ls -l")
    assert term(task, episode(call("run_command", "", command="grep x y"), other, EDIT), NO) == -1


def test_hostile_commands_take_no_time(task: Task) -> None:
    lines = (
        "cat $a *;" * 4000,
        "grep x;" * 4000,
        "find . -exec cat;" * 9,
        "cat " + "*a" * 4000,
        "cat '",
        "<<a" * 9000,
    )
    events = [call("run_command", "x\n" * 5000, command=line) for line in lines for _ in range(3)]
    assert load_term("unread_edit")(task, episode(*events, EDIT, EDIT), NO) == 0
