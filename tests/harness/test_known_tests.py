"""Results of tests are used again where nothing that decides them has changed, and nowhere else."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from woodshed.harness.registry import harness_hash
from woodshed.harness.session import KnownTests
from woodshed.harness.settings import COMPACT_TOOLS, HarnessSettings, LimitSettings
from woodshed.sandbox.protocol import BoxError, ExecResult

from .folder_box import FolderBox
from .test_tools import PLAIN, use, use_all

RUN = ("run_tests", {})
COMMAND = "cat ridge.py; echo ran"


def runs(box: FolderBox) -> int:
    return box.calls.count("exec")


def test_equal_files_run_once_for_all_boxes_of_a_task(box: FolderBox) -> None:
    known = KnownTests()
    files = {path: (box.root / path).read_bytes() for path in ("ridge.py",)}
    other = FolderBox(files)
    for path in box.root.rglob("*"):
        if path.name != "ridge.py" and path.is_file():
            path.unlink()
    options: Any = {"test_command": COMMAND, "reuse": partial(known.run, "task")}
    first = use(box, RUN, **options)
    assert first.text.endswith("ran") and runs(box) == 1
    assert use(other, RUN, **options) == first and runs(other) == 0
    edit = ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return 7"})
    settings = PLAIN.model_copy(update={"tools": COMPACT_TOOLS})
    results = use_all(other, edit, RUN, ("undo", {}), RUN, settings=settings, **options)
    assert "return 7" in results[1].text and results[3] == first and runs(other) == 1, "only the changed file ran"
    use(box, RUN, test_command=COMMAND, reuse=partial(known.run, "another"))
    use(box, RUN, test_command=f"{COMMAND} again", reuse=partial(known.run, "task"))
    assert runs(box) == 3, "another task may have other dependencies"
    assert (known.hits, known.misses) == (2, 4)
    (other.root / "new.txt").write_text("x")
    use(other, RUN, **options)
    assert runs(other) == 2, "a file that no edit made counts too"


class _Box:
    """``files``: what ``get`` gives, or raises."""

    def __init__(self, files: dict[str, bytes] | Exception) -> None:
        self.files = files

    async def get(self, patterns: list[str]) -> dict[str, bytes]:
        if isinstance(self.files, Exception):
            raise self.files
        return self.files


def test_what_a_limit_cut_short_is_not_kept() -> None:
    async def main() -> None:
        known, count = KnownTests(entries=2), 0

        async def execute(**ended: bool) -> ExecResult:
            nonlocal count
            count += 1
            return ExecResult(0, f"{count}".encode(), **ended)

        def run(files: Any, **ended: bool) -> Any:
            return known.run("t", _Box(files), "c", partial(execute, **ended))  # type: ignore[arg-type]

        for ended in ("timed_out", "out_of_memory", "truncated"):
            before = count
            await run({"a": b"1"}, **{ended: True})
            await run({"a": b"1"}, **{ended: True})
            assert count == before + 2
        gone = BoxError(27, "too large")
        assert (await run(gone)).stdout != (await run(gone)).stdout, "what cannot be read is not known"
        one = await run({"a": b"1"})
        one.returncode = 9  # what a tool does with a result is its own
        assert (await run({"a": b"1"})).returncode == 0
        assert (await run({"a": b"", "1": b""})).stdout != (await run({"a": b"1"})).stdout
        await run({"a": b"2"})
        before = count
        await run({"a": b"", "1": b""})
        assert count == before + 1, "the least recently used was dropped"

    asyncio.run(main())


def test_only_with_tools_that_change_files() -> None:
    tiny = HarnessSettings(tools=COMPACT_TOOLS, plain_message_ends=False, limits=LimitSettings())
    reusing = HarnessSettings.model_validate({**tiny.model_dump(), "reuse_test_results": True})
    assert harness_hash(reusing) == harness_hash(tiny), "a policy cannot notice it"
    with pytest.raises(ValidationError, match="run_command"):
        HarnessSettings(reuse_test_results=True)
