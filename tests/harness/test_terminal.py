from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from woodshed.harness.display import call_line
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.episode import Episode
from woodshed.harness.settings import HarnessSettings
from woodshed.harness.terminal import FolderError, changed, read_folder, unified, work_on_folder, write_back
from woodshed.record.visible import visible

from .conftest import Script, Step, call, say, serve
from .folder_box import FolderBox

EDIT = ("edit_file", {"path": "a.py", "old_string": "1", "new_string": "2"})


def drive(folder: Path, *steps: Step, lines: list[str] | None = None, **options: Any) -> tuple[Episode, str, Script]:
    """Run the agent on a folder with typed lines; return the episode, the terminal's text and the requests."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    script, typed = Script(steps), list(lines or [])

    def answer(prompt: str) -> str:
        console.print(prompt)
        if not typed:
            raise EOFError
        return typed.pop(0)

    async def go() -> Episode:
        async with serve(script) as url:
            endpoint = HttpEndpoint(url, "k", "m")
            box: Any = FolderBox()
            settings = HarnessSettings(workdir=str(box.root))
            try:
                return await work_on_folder(
                    folder, "raise A", endpoint, box, settings, console, **{"ask": answer, **options}
                )
            finally:
                await endpoint.close()
                await box.close()

    episode = asyncio.run(go())
    output = console.file
    assert isinstance(output, io.StringIO)
    return episode, output.getvalue(), script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("A = 1\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref")
    return tmp_path


def test_a_folder_is_written_back_only_with_consent(folder: Path) -> None:
    steps = [call(EDIT, content="I change \x1b[2J it"), say("All done")]
    episode, shown, _ = drive(folder, *steps, lines=["n"])
    assert episode.status == "submitted" and (folder / "a.py").read_text() == "A = 1\n"
    for text in ("raise A", "edit_file path=a.py", "All done", "-A = 1", "+A = 2", "submitted after 2 turns"):
        assert text in shown
    assert "\x1b[2J" not in shown
    assert "turn 1 " in shown and "turn 2 " in shown and "turn 0" not in shown
    drive(folder, *steps, lines=[])
    assert (folder / "a.py").read_text() == "A = 1\n"
    drive(folder, *steps, yes=True)
    assert (folder / "a.py").read_text() == "A = 2\n"


def test_step_mode_runs_refuses_and_takes_over(folder: Path) -> None:
    look = ("read_file", {"path": "a.py"})
    _, _, script = drive(
        folder,
        call(look),
        call(look),
        call(look),
        call(look),
        call(look),
        say("bye"),
        step=True,
        lines=["", "n", "s typed by hand", "a"],
    )
    answers = [m["content"] for m in script.requests[-1]["messages"] if m["role"] == "tool"]
    assert answers == ["1\tA = 1", "error: refused by the user", "typed by hand", "1\tA = 1", "1\tA = 1"]


def test_step_mode_runs_no_call_because_of_a_line_that_it_does_not_know(folder: Path) -> None:
    look = ("read_file", {"path": "a.py"})
    _, _, script = drive(folder, call(look), call(look), say("bye"), step=True, lines=["no", "n", "s", "s typed"])
    answers = [m["content"] for m in script.requests[-1]["messages"] if m["role"] == "tool"]
    assert answers == ["error: refused by the user", "typed"]


def test_an_interrupt_waits_for_no_line(folder: Path) -> None:
    """Python ends without its daemon threads; for any other, Ctrl-C would wait until a line is typed."""
    asked: list[bool] = []

    def answer(prompt: str) -> str:
        asked.append(threading.current_thread().daemon)
        return "y" if "[y/N]" in prompt else ""

    drive(folder, call(EDIT), say("bye"), step=True, ask=answer, lines=[])
    assert asked == [True, True] and (folder / "a.py").read_text() == "A = 2\n"


def test_a_person_may_go_on_talking(folder: Path) -> None:
    episode, _, script = drive(folder, say("done?"), say("done!"), talk=True, lines=["also b", ""])
    assert script.requests[1]["messages"][-1] == {"role": "user", "content": "also b"}
    assert episode.status == "submitted" and episode.effort.turns == 2


def test_tests_of_the_folder_run(folder: Path) -> None:
    (folder / "t.py").write_text("import a\nprint('got', a.A)\n")
    steps = [call(EDIT), call(("run_tests", {})), say("ok")]
    episode, shown, _ = drive(folder, *steps, test_command="python t.py", lines=["y"])
    assert "got 2" in shown and episode.effort.test_runs == 1
    assert sorted(path.name for path in folder.iterdir()) == [".git", "a.py", "t.py"]
    assert (folder / ".git/HEAD").read_text() == "ref"


def test_a_folder_that_changed_meanwhile_is_left_alone(folder: Path) -> None:
    def meanwhile(prompt: str) -> str:
        (folder / "a.py").write_text("A = 9\n")
        return "y" if "[y/N]" in prompt else ""

    with pytest.raises(FolderError, match="changed since the agent started; nothing was written"):
        drive(folder, call(EDIT), say("ok"), ask=meanwhile)
    assert (folder / "a.py").read_text() == "A = 9\n"


def test_what_cannot_be_worked_on(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="not a folder"):
        drive(tmp_path / "none", say("x"))


def test_write_back_stays_inside(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (folder / "link").symlink_to(outside)
    (folder / "file").symlink_to(outside / "f")
    for name in ("../x", "/etc/x", "link/x", "file"):
        with pytest.raises(FolderError):
            write_back(folder, {"fine": b"1", name: b"2"})
    assert not (folder / "fine").exists() and not any(outside.iterdir())
    (folder / "a.py").chmod(0o755)
    write_back(folder, {"a.py": b"new", "sub/b": b"x", "gone": None})
    assert (folder / "a.py").stat().st_mode & 0o777 == 0o755 and (folder / "sub/b").read_bytes() == b"x"
    assert read_folder(folder) == {"a.py": b"new", "sub/b": b"x"}


def test_a_change_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / "b").write_text("a file where the change has a folder")
    with pytest.raises(FolderError, match=r"b/c could not be written, nor what follows it in the diff: "):
        write_back(folder, {"a.py": b"new", "b/c": b"x", "d": b"y"})
    assert read_folder(folder) == {"a.py": b"new", "b": b"a file where the change has a folder"}


def test_diffs() -> None:
    before, after = {"a": b"1\n2\n", "gone": b"x", "same": b"s"}, {"a": b"1\n3\n", "bin": b"\xff", "same": b"s"}
    assert changed(before, after) == {"a": b"1\n3\n", "bin": b"\xff", "gone": None}
    text = unified(before, after)
    assert "--- a/a\n+++ b/a\n" in text and "-2\n+3\n" in text and "Binary file bin differs" in text
    assert "+++ /dev/null" in text and "\\ No newline at end of file" in text


def test_display_text() -> None:
    assert call_line("grep", '{"pattern": "a\\nb", "n": 2}') == "grep pattern=a⏎b n=2"
    assert call_line("grep", "{broken") == "grep {broken" and call_line("finish", "") == "finish"
    assert visible("a\x1b[31m\u202eb\n\tc") == "a\ufffd[31m\ufffdb\n\tc"
