"""The harness on the real default sandbox."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from woodshed.harness.endpoint import HttpEndpoint, pooled_client
from woodshed.harness.loop import run_episode
from woodshed.harness.registry import ToolRegistry
from woodshed.harness.session import Session
from woodshed.harness.settings import ALL_TOOLS, CommandSettings, HarnessSettings
from woodshed.harness.tools.base import ToolResult
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import BoxSpec, Sandbox

from .conftest import Script, call, serve

SETTINGS = HarnessSettings(tools=(*ALL_TOOLS, "edit_line", "undo"), command=CommandSettings(test_timeout=2.0))
FILES = {
    "ridge.py": b"def f(x):\n    return x\n",
    "pkg/a.py": b"import os\nA = 1\n",
    "t.py": b"import sys, ridge\nprint('PASS' if ridge.f(1) == 2 else 'FAIL', __name__, sys.argv)\n",
}


@pytest.fixture(scope="module", autouse=True)
def _works_here() -> None:
    probe = open_backend().probe()
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))


def in_box(work: Any) -> Any:
    """Await ``work(box)`` on a fresh box with FILES."""

    async def go() -> Any:
        backend = open_backend()
        try:
            box = await backend.create(BoxSpec(workdir="/workspace"))
            await box.put(FILES)
            try:
                return await work(box)
            finally:
                await box.close()
        finally:
            await backend.close()

    return asyncio.run(go())


def results(*calls: tuple[str, dict[str, Any]], test_command: str = "python t.py") -> list[ToolResult]:
    async def work(box: Sandbox) -> list[ToolResult]:
        registry, session = ToolRegistry(SETTINGS.tools, SETTINGS), Session(box, SETTINGS, test_command)
        return [await registry.run(*registry.parse(n, json.dumps(args)), session) for n, args in calls]

    out = in_box(work)
    assert isinstance(out, list)
    return out


def test_tests_follow_edits_and_undo() -> None:
    edit = ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x + 1"})
    run: tuple[str, dict[str, Any]] = ("run_tests", {})
    got = [r.text for r in results(run, edit, run, ("undo", {}), run)]
    assert got[0] == got[4] == "FAIL __main__ ['t.py']" and got[2] == "PASS __main__ ['t.py']"


def test_search_and_files() -> None:
    got = results(
        ("grep", {"pattern": "return|import", "glob": "*.py"}),
        ("glob", {"pattern": "**/*.py"}),
        ("list_dir", {}),
        ("read_file", {"path": "/workspace/pkg/a.py"}),
        ("read_file", {"path": "a" * 300}),
        ("read_file", {"path": "pkg"}),
        ("read_file", {"path": "ridge.py/x"}),
        ("write_file", {"path": "deep/er/new.txt", "content": "x"}),
        ("write_file", {"path": "pkg", "content": "x"}),
        ("delete_file", {"path": "deep/er/new.txt"}),
        ("list_dir", {"path": "ridge.py"}),
        ("grep", {"pattern": "(a+)+$", "path": "evil"}),
    )
    assert got[0].text == "ridge.py:2:    return x\nt.py:1:import sys, ridge\npkg/a.py:1:import os"
    assert got[1].text == "pkg/a.py\nridge.py\nt.py" and got[2].text == "pkg/\nridge.py\nt.py"
    assert got[3].text == "1\timport os\n2\tA = 1"
    errors = [r.error for r in got[4:]]
    assert errors == [
        "io_error",
        "is_directory",
        "not_a_directory",
        None,
        "is_directory",
        None,
        "not_a_directory",
        "not_found",
    ]


def test_commands_that_die_flood_or_hang_are_results() -> None:
    command = "run_command"
    got = results(
        (command, {"command": "cd pkg; ls; echo e >&2; exit 4"}),
        (command, {"command": "pwd; id -u"}),
        (command, {"command": "kill -9 -1; echo alive"}),
        (command, {"command": "kill -9 $$"}),
        (command, {"command": "sleep 30 & sleep 30", "timeout": 1.0}),
        (command, {"command": "yes", "timeout": 5}),
        (command, {"command": "head -c 200000 /dev/urandom"}),
        ("run_tests", {}),
    )
    assert got[0].text == "a.py\ne\n[exit code 4]"
    assert got[1].text.startswith("/workspace/pkg\n") and not got[1].text.endswith("\n0")
    assert got[4].error == "timeout" and "[signal 9]" in got[3].text
    assert got[5].error in (None, "timeout") and len(got[5].text) < 10_300 and "left out" in got[5].text
    assert "\x00" not in got[6].text and len(got[6].text) < 10_300
    assert got[7].text.startswith("FAIL")


def test_tests_that_hang_or_attack_their_runner() -> None:
    hang = ("write_file", {"path": "t.py", "content": "print('a', flush=True)\nwhile True:\n    pass\n"})
    attack = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(1, signal.SIGKILL)\nos.abort()\n"
    got = results(
        hang,
        ("run_tests", {}),
        ("write_file", {"path": "t.py", "content": attack}),
        ("run_tests", {}),
        ("read_file", {"path": "ridge.py"}),
    )
    assert got[1].error == "timeout" and got[1].text.startswith("a\nerror: timeout")
    assert got[3].error is None and got[4].error is None


def test_an_episode_in_the_box() -> None:
    script = Script(
        [
            call(("run_tests", {}), ("read_file", {"path": "ridge.py"}), ("list_dir", {})),
            call(("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x + 1"}), ("run_tests", {})),
            call(("finish", {})),
        ]
    )

    async def work(box: Sandbox) -> Any:
        async with serve(script) as url, pooled_client() as client:
            endpoint = HttpEndpoint(url, "k", "m", client)
            episode = await run_episode("fix", box, endpoint, SETTINGS, test_command="python t.py")
        return episode, await box.read("ridge.py")

    episode, final = in_box(work)
    assert episode.status == "submitted" and final == b"def f(x):\n    return x + 1\n"
    assert episode.events[0].result.startswith("FAIL") and episode.events[4].result.startswith("PASS")
