from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from woodshed.harness.errors import TOOL_ERRORS, ToolError
from woodshed.harness.registry import TOOLS, ToolRegistry
from woodshed.harness.session import Session
from woodshed.harness.settings import ALL_TOOLS, COMPACT_TOOLS, HarnessSettings, OutputSettings
from woodshed.harness.tools.base import ToolResult
from woodshed.harness.tools.edit_file import occurrences
from woodshed.harness.tools.run_tests import python_script

from .folder_box import FolderBox

PLAIN = HarnessSettings(tools=(*ALL_TOOLS, "edit_line", "undo"))
WORDS = HarnessSettings(tools=("read_file", "edit_words", "finish"))
TINY = PLAIN.model_copy(update={"output": OutputSettings(separator="", snippet=False, error_detail=False)})


def use(box: Any, *calls: tuple[str, dict[str, Any]], settings: HarnessSettings = PLAIN, **session: Any) -> ToolResult:
    """Run calls in one session, through the registry; the result of the last."""
    return use_all(box, *calls, settings=settings, **session)[-1]


def use_all(
    box: Any, *calls: tuple[str, dict[str, Any]], settings: HarnessSettings = PLAIN, **session: Any
) -> list[ToolResult]:
    folder = getattr(box, "root", None)
    settings = settings.model_copy(update={"workdir": str(folder) if folder else "/workspace"})
    registry = ToolRegistry(settings.tools, settings)
    state = Session(box, settings, **session)

    async def go() -> list[ToolResult]:
        out = []
        for name, args in calls:
            try:
                tool, parsed = registry.parse(name, json.dumps(args))
                out.append(await registry.run(tool, parsed, state))
            except ToolError as error:
                out.append(registry.error(error))
        return out

    return asyncio.run(go())


def test_read_file_layouts(box: FolderBox) -> None:
    assert use(box, ("read_file", {"path": "ridge.py"})).text == "1\tdef f(x):\n2\t    return x"
    assert use(box, ("read_file", {"path": "ridge.py"}), settings=TINY).text == "\n1def f(x):\n2    return x"
    assert use(box, ("read_file", {"path": "ridge.py", "offset": 2, "limit": 5})).text == "2\t    return x"
    assert use(box, ("read_file", {"path": "ridge.py", "limit": 1})).text == "1\tdef f(x):\n[... 1 more lines ...]"
    assert "2 lines" in use(box, ("read_file", {"path": "ridge.py", "offset": 9})).text
    assert use(box, ("read_file", {"path": str(box.root / "ridge.py")})).error is None


def test_read_file_is_bounded_and_clean(box: FolderBox) -> None:
    box._write({"big": b"x" * 50_000 + b"\xff\x00END", "huge": b"y" * (1 << 20) + b"y", "empty": b""})
    small = PLAIN.model_copy(update={"output": OutputSettings(chars=100)})
    text = use(box, ("read_file", {"path": "big"}), settings=small).text
    assert text.startswith("1\txxx") and text.endswith("\ufffd\ufffdEND") and "characters left out" in text
    assert len(text) < 160
    assert use(box, ("read_file", {"path": "huge"})).error == "too_large"
    assert use(box, ("read_file", {"path": "empty"})).text == "[empty file]"


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("read_file", {"path": "../x"}, "path_outside_workspace"),
        ("read_file", {"path": "/etc/passwd"}, "path_outside_workspace"),
        ("read_file", {"path": "pkg/../../x"}, "path_outside_workspace"),
        ("read_file", {"path": ""}, "invalid_path"),
        ("read_file", {"path": "a\0b"}, "invalid_path"),
        ("read_file", {"path": "a" * 2000}, "invalid_path"),
        ("read_file", {"path": "a" * 300}, "io_error"),
        ("read_file", {"path": "none.py"}, "not_found"),
        ("read_file", {"path": "pkg"}, "is_directory"),
        ("read_file", {"path": "ridge.py/x"}, "not_a_directory"),
        ("read_file", {}, "invalid_arguments"),
        ("read_file", {"path": 3}, "invalid_arguments"),
        ("read_file", {"path": "ridge.py", "colour": 1}, "invalid_arguments"),
        ("read_file", {"path": "ridge.py", "offset": 0}, "invalid_arguments"),
        ("edit_file", {"path": "ridge.py", "old_string": "y", "new_string": "z"}, "no_match"),
        ("edit_file", {"path": "ridge.py", "old_string": "", "new_string": "z"}, "no_match"),
        ("edit_file", {"path": "ridge.py", "old_string": "x", "new_string": "z"}, "multiple_matches"),
        ("edit_file", {"path": "ridge.py", "old_string": "x", "new_string": "x"}, "no_change"),
        ("edit_file", {"path": "ridge.py", "old_string": "(x):", "new_string": "("}, "syntax_error"),
        ("edit_file", {"path": "none.py", "old_string": "x", "new_string": "y"}, "not_found"),
        ("edit_line", {"path": "ridge.py", "line": 3, "text": "x"}, "no_such_line"),
        ("edit_line", {"path": "ridge.py", "line": 0, "text": "x"}, "no_such_line"),
        ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x"}, "no_change"),
        ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return ("}, "syntax_error"),
        ("edit_line", {"path": "ridge.py", "line": "two", "text": "x"}, "invalid_arguments"),
        ("write_file", {"path": "ridge.py", "content": "def f(x):\n    return x\n"}, "no_change"),
        ("write_file", {"path": "ridge.py", "content": "def"}, "syntax_error"),
        ("delete_file", {"path": "none"}, "not_found"),
        ("undo", {}, "nothing_to_undo"),
        ("grep", {"pattern": "("}, "invalid_pattern"),
        ("grep", {"pattern": "x", "path": "none"}, "not_found"),
        ("glob", {"pattern": "../*"}, "path_outside_workspace"),
        ("glob", {"pattern": "*", "path": "none"}, "not_found"),
        ("list_dir", {"path": "none"}, "not_found"),
        ("run_command", {"command": "a\0"}, "invalid_arguments"),
        ("run_tests", {}, "no_tests"),
        ("todo_write", {"todos": [{"id": "1", "content": "a", "status": "maybe"}]}, "invalid_arguments"),
        ("fly", {}, "unknown_tool"),
    ],
)
def test_errors_are_typed_one_line_and_change_nothing(
    box: FolderBox, name: str, args: dict[str, Any], error: str
) -> None:
    before = asyncio.run(box.get(["**/*"]))
    result = use(box, (name, args))
    assert result.error == error
    assert result.text.startswith("error: " + error.replace("_", " ")) and "\n" not in result.text
    assert len(result.text) < 400
    assert asyncio.run(box.get(["**/*"])) == before
    assert use(box, (name, args), settings=TINY).text == "error: " + error.replace("_", " ")


def test_lone_surrogates_are_refused(box: FolderBox) -> None:
    registry = ToolRegistry(PLAIN.tools, PLAIN)
    for name in ("write_file", "edit_file", "run_command"):
        with pytest.raises(ToolError, match="invalid_arguments"):
            registry.parse(name, '{"path":"a","content":"\\ud800","command":"\\ud800"}')


def test_edit_file(box: FolderBox) -> None:
    result = use(box, ("edit_file", {"path": "ridge.py", "old_string": "return x", "new_string": "return x + 1"}))
    assert result == ToolResult("ok\n1\tdef f(x):\n2\t    return x + 1\n3\t")
    both = use(box, ("edit_file", {"path": "ridge.py", "old_string": "x", "new_string": "y", "replace_all": True}))
    assert both.error is None
    assert (box.root / "ridge.py").read_text() == "def f(y):\n    return y + 1\n"


def test_an_edit_of_a_broken_file_is_allowed(box: FolderBox) -> None:
    box._write({"bad.py": b"def f(:\n  pass\n", "crlf.py": b"a = 1\r\nb = 2\r\n"})
    assert use(box, ("edit_line", {"path": "bad.py", "line": 2, "text": "  return"})).error is None
    assert use(box, ("edit_file", {"path": "crlf.py", "old_string": "b = 2", "new_string": "b = 3"})).error is None
    assert (box.root / "crlf.py").read_bytes() == b"a = 1\r\nb = 3\r\n"


def test_edit_line_and_undo_go_back_step_by_step(box: FolderBox) -> None:
    original = (box.root / "ridge.py").read_bytes()
    steps: list[tuple[str, dict[str, Any]]] = [
        ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x + 1"}),
        ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x + 2"}),
        ("write_file", {"path": "new/file.py", "content": "a = 1\n"}),
        ("delete_file", {"path": "pkg/a.py"}),
    ]
    undo: tuple[str, dict[str, Any]] = ("undo", {})
    results = use_all(box, *steps, *[undo] * 5, settings=TINY)
    assert [r.text for r in results] == ["ok"] * 8 + ["error: nothing to undo"]
    assert (box.root / "ridge.py").read_bytes() == original
    assert not (box.root / "new/file.py").exists() and (box.root / "pkg/a.py").exists()
    results = use_all(box, *steps[:2], ("undo", {}), settings=TINY)
    assert (box.root / "ridge.py").read_text().endswith("x + 1\n")


def test_search(box: FolderBox) -> None:
    assert use(box, ("grep", {"pattern": r"return\s+x"})).text == "ridge.py:2:    return x"
    assert use(box, ("grep", {"pattern": "IMPORT", "ignore_case": True, "glob": "*.py"})).text == "pkg/a.py:1:import os"
    assert use(box, ("grep", {"pattern": "zzz"})).text == "[no match]"
    assert use(box, ("grep", {"pattern": "A", "path": "pkg"})).text == "pkg/a.py:2:A = 1"
    assert use(box, ("glob", {"pattern": "**/*.py"})).text == "pkg/a.py\nridge.py"
    assert use(box, ("glob", {"pattern": "*.toml"})).text == "[no match]"
    assert use(box, ("list_dir", {})).text == "pkg/\nridge.py"
    few = PLAIN.model_copy(update={"output": OutputSettings(matches=1, line_chars=20)})
    box._write({"long.py": b"q" * 1000 + b"\nq\n"})
    assert use(box, ("grep", {"pattern": "q"}), settings=few).text.startswith("long.py:1:" + "q" * 20 + "…\n[... more")
    assert "more" in use(box, ("list_dir", {}), settings=few).text


def test_run_command(box: FolderBox) -> None:
    assert use(box, ("run_command", {"command": "echo out; echo err >&2; exit 3"})).text == "out\nerr\n[exit code 3]"
    assert use(box, ("run_command", {"command": "true"})).text == "[no output]"
    assert "[signal 9]" in use(box, ("run_command", {"command": "kill -9 $$"})).text
    broken = use(box, ("run_command", {"command": "echo 'unfinished"}))
    assert broken.error is None and "exit code" in broken.text
    assert use(box, ("run_command", {"command": "cat <<X\na $1 b\nX\n"})).text == "a  b"
    where = use_all(box, ("run_command", {"command": "cd pkg; X=1"}), ("run_command", {"command": "ls; echo $X"}))
    assert where[1].text == "a.py"
    gone = [("run_command", {"command": c}) for c in ("mkdir t; cd t", "rmdir ../t; false", "echo here")]
    assert use_all(box, *gone)[2].text.endswith("here")
    slow = use(box, ("run_command", {"command": "echo first; sleep 9", "timeout": 1.0}))
    assert slow.error == "timeout" and slow.text.startswith("first\nerror: timeout")
    late = use(box, ("run_command", {"command": "sleep 5"}), deadline=0.0)
    assert late.error == "timeout"
    flood = use(box, ("run_command", {"command": "yes | head -c 3000000"}))
    assert flood.error is None and "left out" in flood.text and len(flood.text) < 10_200


def test_run_tests(box: FolderBox) -> None:
    box._write(
        {
            "check.py": b"import sys, ridge\nprint('PASS', ridge.f(2), __name__, sys.argv)\nprint(3, file=sys.stderr)",
            "boom.py": b"import ridge\nraise SystemExit(ridge.g)",
            "silent.py": b"",
            "loop.py": b"print('start', flush=True)\nwhile True: pass",
        }
    )
    done = use(box, ("run_tests", {}), test_command="python check.py")
    assert done == ToolResult("PASS 2 __main__ ['check.py']", exit_code=0)
    assert box.calls == ["exec_python", "exec"]  # FolderBox runs Python by exec
    assert "AttributeError" in use(box, ("run_tests", {}), test_command="python3 boom.py").text
    assert use(box, ("run_tests", {}), test_command="python silent.py").text == "[no output]"
    assert "No such file" in use(box, ("run_tests", {}), test_command="python gone.py").text
    assert use(box, ("run_tests", {}), test_command="echo A; echo B >&2; false").text == "A\nB"
    assert use(box, ("run_tests", {}), test_command="false").text == "[exit code 1]"
    quick = PLAIN.model_copy(update={"command": PLAIN.command.model_copy(update={"test_timeout": 2.0})})
    loop = use(box, ("run_tests", {}), test_command="python loop.py", settings=quick)
    assert loop.error == "timeout" and loop.text.startswith("start\nerror: timeout")


@pytest.mark.parametrize("tool", ["run_tests", "run_command"])
@pytest.mark.parametrize(
    ("command", "code"), [("echo A; exit 3", 3), ("exit 3", 3), ("true", 0), ("echo A", 0), ("echo A; kill -9 $$", -9)]
)
def test_the_record_has_the_exit_code(box: FolderBox, tool: str, command: str, code: int) -> None:
    arguments = {"command": command} if tool == "run_command" else {}
    assert use(box, (tool, arguments), test_command=command).exit_code == code


def test_a_failing_test_script_shows_its_report(box: FolderBox) -> None:
    """unittest reports on stderr, and stdout may hold what the code under test prints."""
    unit = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        print(1)\n        self.{}\n"
    box._write(
        {
            "wrong.py": (unit.format("assertEqual(1, 2)") + "unittest.main()\n").encode(),
            "right.py": (unit.format("assertEqual(2, 2)") + "unittest.main()\n").encode(),
            "gone.py": b"print('start', flush=True)\nimport os\nos.kill(os.getpid(), 11)\n",
        }
    )
    wrong = use(box, ("run_tests", {}), test_command="python wrong.py").text
    assert wrong.startswith("1\n") and "AssertionError: 1 != 2" in wrong and wrong.endswith("FAILED (failures=1)")
    assert use(box, ("run_tests", {}), test_command="python right.py").text == "1"
    assert use(box, ("run_tests", {}), test_command="python gone.py").text == "start\n[signal 11]"


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python t.py", "t.py"), ("python3 a/t.py", "a/t.py"), ("python -m pytest", None), ("python t.py -v", None),
        ("python t.py; ls", None), ("sh t.py", None), ("python 't x.py'", "t x.py"), ("python 't", None),
    ],
)  # fmt: skip
def test_which_commands_run_warm(command: str, script: str | None) -> None:
    assert python_script(command) == script


def test_read_lints_without_ruff(box: FolderBox) -> None:
    box._write({"bad.py": b"def f(:\n"})
    box._write({"undef.py": b"def g():\n    return nope + len(g.__doc__)\n\ndef g():\n    pass\n"})
    real = box.exec

    async def missing(command: Any, **kwargs: Any) -> Any:
        argv = list(command)
        asks_ruff = argv[0] == "/bin/sh" and "ruff" in argv[2]
        return await real(["/bin/sh", "-c", "exit 127"] if asks_ruff else argv, **kwargs)

    box.exec = missing  # type: ignore[method-assign]
    text = use(box, ("read_lints", {})).text
    assert "bad.py:1: syntax error: invalid syntax" in text
    assert "undef.py:2: undefined name 'nope'" in text and "undef.py:4: 'g' defined again (first on line 1)" in text
    assert "pkg/a.py:1: 'os' imported but unused" in text and "ridge.py" not in text
    assert use(box, ("read_lints", {"paths": ["ridge.py"]})).text == "[no findings]"
    assert use(box, ("read_lints", {"paths": ["none.py"]})).error == "not_found"


def test_todo_write_replaces_and_merges(box: FolderBox) -> None:
    first = ("todo_write", {"todos": [{"id": "1", "content": "look"}, {"id": "2", "content": "fix"}]})
    second = ("todo_write", {"merge": True, "todos": [{"id": "1", "content": "look", "status": "completed"}]})
    assert use(box, first, second).text == "[x] look\n[ ] fix"
    assert use(box, first, ("todo_write", {"todos": []})).text == "[empty list]"


def test_every_tool_has_a_plain_schema() -> None:
    assert {*ALL_TOOLS, *COMPACT_TOOLS} == set(TOOLS)
    schemas = {s["function"]["name"]: s for s in ToolRegistry(PLAIN.tools, PLAIN).schemas()}
    for name, schema in schemas.items():
        assert schema["type"] == "function" and schema["function"]["description"]
        assert schema["function"]["parameters"]["type"] == "object"
        assert "title" not in json.dumps(schema), name
    assert schemas["edit_line"]["x-compact"] == {"verb": "edit", "template": "{path}\n{line}{text}"}
    assert schemas["run_tests"]["x-compact"] == {"verb": "test", "template": ""}
    assert schemas["finish"]["x-compact"]["verb"] == "submit"
    assert str(PLAIN.output.chars) in schemas["read_file"]["function"]["description"]
    bare = HarnessSettings(compact_schemas=False)
    assert not any("x-compact" in s for s in ToolRegistry(bare.tools, bare).schemas())


def test_a_bug_in_a_tool_is_an_answer_and_is_logged(box: FolderBox, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(path: str, **kwargs: Any) -> bytes:
        raise RuntimeError("backend bug")

    box.read = broken  # type: ignore[method-assign]
    assert use(box, ("read_file", {"path": "ridge.py"})).error == "internal_error"
    assert "backend bug" in caplog.text
    assert "internal_error" in TOOL_ERRORS


@pytest.mark.parametrize(
    ("line", "words", "found"),
    [
        ("    return xs + x", "x", [16]),
        ("    if a <= b:", "<", []),
        ("    if a <= b:", "<=", [9]),
        ("    if a < b or b > a:", "b", [11, 16]),
        ("    if a < b or b > a:", "b or b", [11]),
        ("    x = -1", "-1", [8]),
        ("    y = f(10) - 1", "1", [16]),
        ("    return x", "", []),
    ],
)
def test_words_are_whole_words_and_operators(line: str, words: str, found: list[int]) -> None:
    assert occurrences(line, words) == found


def test_edit_words_changes_what_it_names_and_nothing_else(box: FolderBox) -> None:
    box._write({"a.py": b"def f(x, xs):\n    return x + xs\n"})
    call = {"path": "a.py", "line": 2}
    for old, new, error in (
        ("x", "xs", None),  # then both words of the sum are xs
        ("xs", "x", "multiple_matches"),
        ("y", "x", "no_match"),
        ("+", "+", "no_change"),
        ("+", "(", "syntax_error"),
        ("+ xs", "- x", None),
    ):
        assert use(box, ("edit_words", {**call, "old": old, "new": new}), settings=WORDS).error == error
    assert (box.root / "a.py").read_bytes() == b"def f(x, xs):\n    return xs - x\n"
    outside = use(box, ("edit_words", {"path": "a.py", "line": 3, "old": "x", "new": "y"}), settings=WORDS)
    assert outside.error == "no_such_line"
