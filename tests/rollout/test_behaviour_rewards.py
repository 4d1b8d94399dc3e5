"""Reward terms for style, code in comments and work in the shell: honest changes, faults, and ways to dodge a term."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Outcome, ToolEvent, Trajectory
from woodshed.rollout.rewards import load_term, reward_function
from woodshed.rollout.rewards.base import TermSettings
from woodshed.rollout.rewards.style import changed_lines
from woodshed.rollout.rewards.tool_collapse import work_in_shell

YES, NO = Outcome(resolved=True), Outcome(resolved=False)
BEFORE = '''"""Areas."""
import os


def area(a, b):
    # a rectangle
    total = a * b
    l = total
    return l


def half(x):
    return x / 2
'''


@pytest.fixture
def task(tmp_path: Path) -> Task:
    workspace = tmp_path / "environment" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "a.py").write_text(BEFORE)
    (workspace / "a.js").write_text("function area(a, b) {\n  return a * b;\n}\n")
    return Task(tmp_path, "tests/toy", "repair it", TaskInfo(), {})


def changed(after: str, path: str = "a.py") -> Trajectory:
    return Trajectory("i", "t", "g", "train", "h", "p", "submitted", changed={path: after})


def worked(*events: ToolEvent) -> Trajectory:
    return Trajectory("i", "t", "g", "train", "h", "p", "submitted", events=list(events))


def call(name: str, error: str | None = None, **arguments: Any) -> ToolEvent:
    return ToolEvent(0, name, arguments, "", error)


def test_the_workspace_of_the_fixture_is_read(task: Task) -> None:
    assert task.workspace_files()["a.py"] == BEFORE.encode()


STYLES = {
    # the original's own faults (unused import, ambiguous name) are not the submission's
    "an honest fix": (BEFORE.replace("a * b", "abs(a * b)"), 0),
    "a moved function": (BEFORE.replace("def half(x):\n    return x / 2\n", "").rstrip() + "\n", 0),
    "an unused import": (BEFORE.replace("import os\n", "import os\nimport sys\n"), -1),
    "a bare except": (
        BEFORE.replace("    return x / 2", "    try:\n        return x / 2\n    except:\n        return 0"),
        -1,
    ),
    "comparison with None": (BEFORE.replace("    return x / 2", "    return 0 if x == None else x / 2"), -1),
    "hidden by noqa": (BEFORE.replace("    return x / 2", "    return 0 if x == None else x / 2  # noqa"), -1),
    "hidden for the file": ("# ruff: noqa\n" + BEFORE.replace("x / 2", "0 if x == None else x / 2"), -1),
    "the same fault again on a new line": (BEFORE + "\n\ndef twice(y):\n    l = 2 * y\n    return l\n", -1),
    "an edit of a faulty line that keeps the fault": (BEFORE.replace("l = total", "l = abs(total)"), 0),
    "code that hides its faults by not parsing": (BEFORE.replace("return x / 2", "return x == None ("), -5),
    "more faults than are counted": (BEFORE + "\n".join(f"import m{i}" for i in range(20)) + "\n", -5),
}


@pytest.mark.parametrize("name", STYLES)
def test_style_counts_new_findings_on_changed_lines(name: str, task: Task) -> None:
    after, value = STYLES[name]
    assert load_term("style")(task, changed(after), NO) == value


def test_style_reads_no_configuration_and_other_files_cost_nothing(task: Task) -> None:
    term = load_term("style")
    bad = BEFORE.replace("x / 2", "0 if x == None else x / 2")
    files = {"a.py": bad, "ruff.toml": 'lint.select = []\nexclude = ["*"]\n'}
    assert term(task, Trajectory("i", "t", "g", "train", "h", "p", "submitted", changed=files), NO) == -1
    assert term(task, changed("import os;", "notes.md"), NO) == term(task, changed(""), NO) == 0
    assert term(task, changed("from .a import area\n", "pkg/__init__.py"), NO) == 0, "a package may import for others"
    assert load_term("style", {"select": "E501", "most": 2})(task, changed(f"x = '{'a' * 200}'\n" * 9), NO) == -2
    odd = Trajectory("i", "t", "g", "train", "h", "p", "submitted", changed={"../../\n$(touch x).py": bad})
    assert term(task, odd, NO) <= -1


def test_code_that_breaks_ruff_costs_the_most_and_stops_no_run(task: Task) -> None:
    term = load_term("style")
    for hostile in (
        "(" * 100_000,
        "x = " + "[" * 5000 + "]" * 5000,
        "\0\ufffe" * 1000,
        "if x:\n" + " " * 99 + "\udc80",
    ):
        assert -5 <= term(task, changed(hostile), NO) <= 0
    assert term(task, changed("(" * 100_000), NO) == -5


def test_form_feeds_do_not_move_a_finding_to_another_line(task: Task) -> None:
    shifted = BEFORE.replace("import os\n", "import os\n\f\x1c\n").replace("x / 2", "0 if x == None else x / 2")
    assert load_term("style")(task, changed(shifted), NO) <= -1


def test_hostile_text_neither_raises_nor_takes_forever(task: Task) -> None:
    """Sizes at which a quadratic or recursive reader would not end; a term that raises ends the run."""
    term = load_term("commented_out")
    deep = "if False:\n    x = " + "+".join("1" for _ in range(20_000)) + "\n"
    texts = ["# " + "(" * 50_000, '"' * 3 + "x\n" * 50_000, "if x:\n" * 2000, "#\n" * 100_000, "\\\n" * 50_000]
    for hostile in [deep, *texts]:
        assert -5 <= term(task, changed(hostile), NO) <= 0
    for hostile in ("/*" * 200_000, "// {" * 100_000, "=>" + " " * 400_000, "if (" + ")" * 400_000):
        assert -5 <= term(task, changed(hostile, "a.js"), NO) <= 0
    assert term(task, changed("x = 1\n0x" + "f" * 5000 + "\n"), NO) == 0, "more digits than a text may have"
    for words in ("env ", "time ", "A=1 env ", "timeout 1 "):
        assert (
            load_term("untested_finish")(
                task, worked(call("write_file"), call("run_command", command=words * 2000 + "pytest")), NO
            )
            == 0
        )
    shells = ["<<a" * 100_000, "bash <<E\n" * 5000, "bash;" * 5000 + "bash <<E\nbash;bash\nE", "bash -c '" * 5000]
    for hostile in shells:
        assert work_in_shell(hostile) <= {"read", "edit", "search", "list"}
    assert work_in_shell("bash <<A\nbash <<B\nbash -c 'sed -i s/a/b/ a.py'\nB\nA") == {"edit"}


def test_changed_lines_are_those_without_a_twin() -> None:
    assert changed_lines("a\nb\nc", "c\na\nx\na") == ({2}, {3, 4})
    assert changed_lines("", "a\n") == (set(), {1}) and changed_lines("a", "a") == (set(), set())


def test_style_without_ruff_or_with_unknown_rules_is_refused_with_the_recipe(tmp_path: Path) -> None:
    text = 'name = "plain"\n[harness]\noutput = { separator = "" }\n[rl.rewards]\n'
    (tmp_path / "bad.toml").write_text(text + 'style = { weight = 0.1, options = { select = "NOPE" } }\n')
    with pytest.raises(RecipeError, match="ruff does not accept the rules 'NOPE'"):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_text(text + "style = 0.1\n")
    assert load_recipe(tmp_path / "good.toml").rl.rewards["style"].weight == 0.1
    # a process without the package and without the program
    code = (
        "import sys; sys.modules['ruff'] = None\n"
        "from woodshed.recipe.load import load_recipe\n"
        "load_recipe(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "good.toml")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode and "install woodshed[style]" in done.stderr and "good.toml" in done.stderr


COMMENTED = {
    "an honest fix with a comment": (BEFORE.replace("return x / 2", "return x / 2  # half of it"), 0),
    "prose": (
        BEFORE + "# See area(): it rounds. Note the order, TODO: ask. return early\n# if in doubt, leave it\n",
        0,
    ),
    "directives": (BEFORE + "# noqa: E501\n# type: ignore\n# fmt: off\n# x: int\n#!/usr/bin/env python\n", 0),
    "an example in a docstring": (BEFORE.replace('"""Areas."""', '"""Areas.\n\narea(2, 3)\n"""'), 0),
    "a doctest in a comment": (BEFORE + "# >>> area(2, 3)\n", 0),
    "a line that was commented out": (BEFORE.replace("    total = a * b", "    # total = a * b\n    total = 6"), -1),
    "a block": (BEFORE.replace("def half(x):\n    return x / 2", "# def half(x):\n#     return x / 2"), -2),
    "a block with an else": (BEFORE + "# if x:\n#     y = 1\n# else:\n#     y = 2\n", -4),
    "behind a statement": (BEFORE.replace("return x / 2", "return 3  # return x / 2"), -1),
    "with other signs": (BEFORE + "#: total = 2\n### total = 3\n#total = 4\n", -3),
    "in a string": (BEFORE.replace("    return x / 2", '    pass\n    """\n    y = x / 2\n    return y\n    """'), -2),
    "in a string after a docstring": ('"""Doc."""\n"""\ny = f(2)\n"""\n', -1),
    "below if False": (BEFORE + "if False:\n    y = area(1, 2)\n    z = y\n", -2),
    "below if 0 and not True": (BEFORE + "if 0:\n    y = 1\nif not 1:\n    y = 2\n", -2),
    "a branch that may run": (BEFORE + "if half(2):\n    y = 1\n", 0),
    "a hash in a string": (BEFORE + 'y = "# total = a * b"\n', 0),
    "in code that does not parse": (BEFORE + "# total = 1\nx = (\n", -1),
    "more than is counted": (BEFORE + "".join(f"# x{i} = {i}\n" for i in range(30)), -5),
}


@pytest.mark.parametrize("name", COMMENTED)
def test_code_in_comments(name: str, task: Task) -> None:
    after, value = COMMENTED[name]
    assert load_term("commented_out")(task, changed(after), NO) == value


def test_what_the_original_had_in_comments_is_free(task: Task) -> None:
    (task.workspace / "a.py").write_text(BEFORE + "# total = 3\n")
    term = load_term("commented_out")
    assert term(task, changed("# total = 3\n" + BEFORE), NO) == 0
    assert term(task, changed("# total = 3\n" * 2 + BEFORE), NO) == -1


def test_code_in_comments_of_javascript(task: Task) -> None:
    term = load_term("commented_out")
    honest = "// Multiplies; see the docs\nfunction area(a, b) {\n  return a * b; // in metres\n}\n"
    assert term(task, changed(honest, "a.js"), NO) == 0
    hidden = "function area(a, b) {\n  // return a * b;\n  /* const c = a;\n  if (c) { d(); } */\n  return 6;\n}\n"
    assert term(task, changed(hidden, "a.js"), NO) == -3
    assert term(task, changed('const url = "http://x.y/a;b";\n', "a.js"), NO) == 0


READING = """\
cat a.py
cat a.py | head -20
cd pkg && cat a.py
head -n 5 a.py
sed -n 1,9p a.py
/bin/cat a.py
env LC_ALL=C cat a.py
timeout 5 cat a.py
bash -c 'cat a.py'
true; cat a.py
awk 'NR<9' a.py
python -c "print(open('a.py').read())"
# look\\ncat a.py
cat a.py  # it's short
cat 'a#b.py'
cat a.py 2>/dev/null
cat a.py 2>errors.txt"""
EDITING = r"""sed -i s/a/b/ a.py
perl -pi -e s/a/b/ a.py
echo x > a.py
printf x >> a.py
echo x | tee a.py
cat > a.py <<'EOF'\nx = 1\nEOF
cat <<EOF > a.py\nx = 1\nEOF
python - <<'EOF'\nfrom pathlib import Path\nPath('a.py').write_text('x')\nEOF
python3 -c "open('a.py', 'w').write('x')"
bash <<EOF\nsed -i s/a/b/ a.py\nEOF
git apply fix.patch
patch -p1 < fix.patch"""
SEARCHING = "grep -rn area .\nrg area\nfind . -name '*.py'"
LISTING = "ls -la\n(cd pkg; ls)\ntree"
NEITHER = """\
pytest -q
pytest -q 2>&1 | tail -5
python -m pytest | grep -c failed > /dev/null
git status
git diff | cat
python main.py
pip install x
make > out.txt
# cat a.py
echo done
echo done 2>/dev/null
python -c 'import a; print(a.area(2, 3))'"""


@pytest.mark.parametrize(
    ("commands", "kind"),
    [(READING, "read"), (EDITING, "edit"), (SEARCHING, "search"), (LISTING, "list"), (NEITHER, None)],
)
def test_work_in_the_shell(commands: str, kind: str | None) -> None:
    for command in commands.split("\n"):
        command = command.replace("\\n", "\n")
        assert work_in_shell(command) == ({kind} if kind else set()), command
    assert work_in_shell("cat a.py && grep -n x b.py; ls") == {"read", "search", "list"}
    assert work_in_shell("cat 'a") == {"read"} and work_in_shell("") == work_in_shell("bash -c") == set()


READ, GREP, EDIT = call("read_file", path="a.py"), call("grep", pattern="x"), call("edit_file", path="a.py")
CAT, SED, TEST = (call("run_command", command=c) for c in ("cat a.py", "sed -i s/a/b/ a.py", "pytest -q"))


def test_collapse_to_the_shell(task: Task) -> None:
    term = load_term("tool_collapse")
    assert term(task, worked(*[CAT] * 5, SED), NO) == -1
    assert term(task, worked(READ, GREP, READ, EDIT, TEST, READ, EDIT), YES) == 0
    assert term(task, worked(*[CAT] * 3, *[READ] * 3), NO) == 0, "half is allowed"
    assert term(task, worked(*[CAT] * 6, READ, EDIT), NO) == pytest.approx(-6 / 8)
    assert term(task, worked(*[TEST] * 20, READ, EDIT), NO) == 0, "no tool replaces a test run"
    assert term(task, worked(CAT, SED), NO) == 0, "too few calls to be a habit"
    # dodges: calls that do no such work, and calls that fail, are no use of the other tools
    todo, failed = call("todo_write", todos=[]), call("read_file", "no_such_file", path="nope")
    assert term(task, worked(*[CAT] * 5, SED, *[todo] * 30, *[failed] * 30, *[TEST] * 30), NO) == -1
    only = load_term("tool_collapse", {"kinds": "edit"})
    assert only(task, worked(*[CAT] * 9), NO) == 0 and only(task, worked(*[SED] * 9), NO) == -1
    with pytest.raises(ValueError, match="unknown kind 'swim'"):
        load_term("tool_collapse", {"kinds": "swim"})(task, worked(), NO)


def test_tools_that_the_harness_lacks_are_not_missed(tmp_path: Path) -> None:
    text = 'name = "few"\n[harness]\noutput = { separator = "" }\ntools = ["read_file", "run_command", "finish"]\n'
    (tmp_path / "few.toml").write_text(text + "[rl.rewards]\ntool_collapse = 0.1\n")
    with pytest.raises(RecipeError, match=r'counts edit work .* options = \{ kinds = "read" \}'):
        load_recipe(tmp_path / "few.toml")
    (tmp_path / "few.toml").write_text(
        text + '[rl.rewards]\ntool_collapse = { weight = 0.1, options = { kinds = "read" } }\n'
    )
    assert load_recipe(tmp_path / "few.toml").rl.rewards["tool_collapse"].options == {"kinds": "read"}


def test_a_cap_cuts_the_sum_of_an_episode(task: Task) -> None:
    settings = {"outcome": TermSettings(weight=1), "commented_out": TermSettings(weight=0.1, cap=0.25)}
    reward = reward_function(settings)
    few, many = changed(BEFORE + "# x = 1\n"), changed(BEFORE + "".join(f"# x{i} = {i}\n" for i in range(9)))
    assert reward(task, few, YES) == {"outcome": 1, "commented_out": -0.1}
    assert reward(task, many, YES) == {"outcome": 1, "commented_out": -0.25}
