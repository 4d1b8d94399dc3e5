"""Real processes: restarted when killed, not restarted when they keep dying, ended with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from waiting import wait_until

from woodshed.cluster.supervisor import Program, ProgramFailed, Supervisor, last_words


def test_a_killed_program_comes_back_and_a_finished_one_does_not(tmp_path: Path) -> None:
    supervisor = Supervisor()
    supervisor.start(Program("sleeper", ["-c", "import time; time.sleep(60)"], tmp_path / "a.log"))
    supervisor.start(Program("quick", ["-c", "pass"], tmp_path / "b.log"))
    process = supervisor.programs["sleeper"].process
    assert process is not None
    process.kill()
    process.wait()
    assert supervisor.check() == ["sleeper"]
    wait_until(lambda: not supervisor.running("quick"), "the program to end")
    assert supervisor.check() == [] and supervisor.programs["quick"].done
    assert supervisor.running("sleeper")
    supervisor.stop()
    assert not supervisor.running("sleeper")


def test_gives_up_with_the_end_of_the_log(tmp_path: Path) -> None:
    supervisor = Supervisor()
    program = Program("broken", ["-c", "raise SystemExit('no such checkpoint')"], tmp_path / "log", max_restarts=1)
    supervisor.start(program)
    with pytest.raises(ProgramFailed, match=r"(?s)broken ended with exit code 1.*no such checkpoint"):
        while True:
            supervisor.check()
            time.sleep(0.02)


def test_what_a_program_says_last_is_shown_without_its_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\nOSError: from an earlier run\n")
    cases = {
        "raise OSError('first line\\nsecond')": "odd ended with exit code 1\nOSError: first line\nsecond",
        "print('step 1\\nfatal: no such package\\nsee LIST'); raise SystemExit(2)": "no such package\nsee LIST",
        "import os; os.kill(os.getpid(), 9)": "odd ended with signal SIGKILL\n",
    }
    for source, message in cases.items():
        supervisor = Supervisor()
        supervisor.start(Program("odd", ["-c", source], log, max_restarts=0))
        wait_until(lambda s=supervisor: not s.running("odd"), "the program to end")
        with pytest.raises(ProgramFailed) as failed:
            supervisor.check()
        assert str(failed.value) == message


def until_it_fails(program: Program) -> tuple[str, int]:
    """The failure's message, and the number of starts."""
    supervisor, starts = Supervisor(), 1
    supervisor.start(program)
    while True:
        try:
            starts += len(supervisor.check())
        except ProgramFailed as failure:
            return str(failure), starts
        time.sleep(0.02)


def test_a_mistake_in_code_is_shown_at_once_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "stage.py").write_text("def read():\n    return tuple().filter\n\nread()\n")
    message, starts = until_it_fails(Program("stage", [str(tmp_path / "stage.py")], tmp_path / "log"))
    assert starts == 1
    assert "AttributeError: 'tuple' object has no attribute 'filter'" in message
    assert 'stage.py", line 2, in read' in message and "return tuple().filter" in message


@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("raise ValueError('no such split')", 2),
        ("import time; raise ValueError(time.time_ns())", 4),
        ("raise ConnectionRefusedError('nobody listens')", 4),
        ("import os; os.kill(os.getpid(), 9)", 4),
    ],
    ids=["the same error", "another error each time", "an error of the network", "killed"],
)
def test_the_same_error_twice_is_not_tried_a_third_time(source: str, starts: int, tmp_path: Path) -> None:
    assert until_it_fails(Program("odd", ["-c", source], tmp_path / "log", max_restarts=3))[1] == starts


@pytest.mark.parametrize(("error", "ends"), [("'no such split'", True), ("time.time_ns()", False)])
def test_long_runs_that_end_in_the_same_error_are_counted(
    error: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("woodshed.cluster.supervisor._SETTLED", 0.0)
    supervisor = Supervisor()
    source = f"import time; raise ValueError({error})"
    supervisor.start(Program("late", ["-c", source], tmp_path / "log", max_restarts=3))
    starts = 1
    try:
        while starts < 7:
            starts += len(supervisor.check())
            time.sleep(0.02)
    except ProgramFailed as failed:
        assert "ValueError: no such split" in str(failed)
    finally:
        supervisor.stop()
    assert starts == (4 if ends else 7)


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from woodshed.cluster.supervisor import Program, Supervisor\n"
        "s = Supervisor(); s.start(Program('c', ['-c', 'import time; time.sleep(60)'], Path(sys.argv[1]) / 'log'))\n"
        "print(s.programs['c'].process.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"

    wait_until(gone, "the child to die")


def test_a_long_log_is_not_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nfatal: no such package\n")
    tracemalloc.start()
    try:
        assert last_words(log) == last_words(log, 5) == "no such package"
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
