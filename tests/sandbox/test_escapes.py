"""Every way out of a box that we know is tried on each backend that runs here, and the attempts are shown to bite."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodshed.attacks.escapes import battery
from woodshed.attacks.escapes.attempts import ATTEMPTS
from woodshed.attacks.escapes.bait import bait
from woodshed.attacks.escapes.battery import Tried, applicable, attack_backend, program, sources
from woodshed.sandbox import open_backend
from woodshed.sandbox.backends.by_name import NAMES
from woodshed.sandbox.backends.docker.engine import ENGINES
from woodshed.sandbox.protocol import BoxGone, ExecResult, SandboxError

from .kinds import marked
from .ordinary import run_as_ordinary_user

_ORDINARY = """
import json, sys
from pathlib import Path
from woodshed.attacks.escapes.battery import attack_backend
print(json.dumps([vars(tried) for tried in attack_backend(sys.argv[2], Path(sys.argv[1]))]))
"""
HARMLESS = (
    "host_file", "dot_dot", "symbolic_link", "hard_link", "roots_of_others", "host_process", "signal_host",
    "host_loopback", "host_address", "datagram", "abstract_socket", "socket_file", "shared_file", "shared_segment",
    "own_environment",
)  # fmt: skip
"""What any process of any user may do on the machine itself."""


@pytest.fixture(params=marked(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    """A backend that works here."""
    try:
        if not (probe := open_backend(request.param).probe()).ok:
            pytest.skip("; ".join(probe.reasons))
    except SandboxError as error:
        pytest.skip(str(error))
    return str(request.param)


def test_nothing_gets_out(name: str) -> None:
    check(attack_backend(name), name)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other test runs as an ordinary user already")
def test_nothing_gets_out_of_boxes_of_an_ordinary_user(name: str) -> None:
    if name in ENGINES:
        pytest.skip("who may use a container engine is its administrator's to say; the other test runs it as root")
    said = run_as_ordinary_user(_ORDINARY, name, machines=name == "microvm")
    check([Tried(**row) for row in json.loads(said)], name)


_BROKEN = ("KeyError", "NameError", "TypeError", "AttributeError", "ValueError", "StopIteration", "ImportError")


def check(tried: list[Tried], name: str) -> None:
    assert len(tried) == len(applicable(name)) + 1 >= 40
    assert [t for t in tried if t.evidence] == []
    ours = [t for t in tried if t.refusal.startswith(_BROKEN)]
    assert ours == [], "an attempt that is broken, not refused"


def test_the_attempts_work_where_nothing_stops_them(tmp_path: Path) -> None:
    """Run on the machine itself, in no box: those that harm nothing find what was laid out."""
    for path, data in sources().items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert set(HARMLESS) <= set(ATTEMPTS)
    refused = {}
    with bait() as facts:
        for name in HARMLESS:
            command = [sys.executable, "-I", "-c", program(name, facts)]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            said = json.loads(done.stdout.splitlines()[-1])
            if not said["evidence"]:
                refused[name] = said["refusal"]
    assert refused == {}


def test_the_bait_is_taken_away() -> None:
    with bait() as facts:
        assert Path(facts["path"]).read_text() == facts["secret"]
    assert not Path(facts["folder"]).exists() and not (Path("/dev/shm") / facts["name"]).exists()
    assert not Path(f"/proc/{facts['pid']}/cmdline").exists()


class _Mortal:
    """A box whose first process can be killed from inside."""

    ended = False

    async def exec_python(self, source: str, **options: Any) -> ExecResult:
        self.ended = True
        return ExecResult(0)

    async def exec(self, command: str, **options: Any) -> ExecResult:
        if self.ended:
            raise BoxGone(errno.EPIPE, "the first process of the box ended")
        self.ended = command.startswith("kill")
        return ExecResult(0)


def test_a_box_that_ends_itself_is_a_result_and_no_error() -> None:
    box: Any = _Mortal()
    assert "ended" in asyncio.run(battery._kill_init(box)).evidence
    box.ended = False
    assert asyncio.run(battery._try(box, ATTEMPTS["host_file"], {}, 1.0)) is None
