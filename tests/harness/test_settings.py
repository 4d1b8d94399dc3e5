from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from woodshed.harness.errors import ToolError, error_text
from woodshed.harness.registry import ToolRegistry, harness_hash
from woodshed.harness.session import confine
from woodshed.harness.settings import COMPACT_TOOLS, HarnessSettings, LimitSettings, OutputSettings, SummarySettings
from woodshed.harness.tools.base import clean, clip, decode


def test_the_hash_is_stable_across_processes_and_notices_everything() -> None:
    code = "from woodshed.harness.registry import *; print(harness_hash(HarnessSettings()))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert harness_hash(HarnessSettings()) == there
    variants = [
        HarnessSettings(),
        HarnessSettings(tools=COMPACT_TOOLS),
        HarnessSettings(tools=COMPACT_TOOLS[::-1]),
        HarnessSettings(system_prompt=""),
        HarnessSettings(output=OutputSettings(separator="")),
        HarnessSettings(limits=LimitSettings(turns=3)),
        HarnessSettings(summary=SummarySettings(trigger_tokens=9)),
        HarnessSettings(compact_schemas=False),
    ]
    assert len({harness_hash(v) for v in variants}) == len(variants)
    first = HarnessSettings(tools=COMPACT_TOOLS)
    assert ToolRegistry(first.tools, first).hash == ToolRegistry(first.tools, HarnessSettings()).hash


def test_settings_name_what_is_wrong() -> None:
    for values, word in (
        ({"tools": ("red_file",)}, "red_file"),
        ({"tools": ("grep", "grep")}, "twice"),
        ({"tools": ()}, "empty"),
        ({"tools": ("grep",), "plain_message_ends": False}, "finish"),
        ({"workdir": "here"}, "absolute"),
        ({"colour": 1}, "colour"),
    ):
        with pytest.raises(ValidationError, match=word):
            HarnessSettings(**values)
    with pytest.raises(ValueError, match="known"):
        ToolRegistry(["fly"], HarnessSettings())


def test_no_torch_and_no_http_for_settings() -> None:
    code = "import sys, woodshed.harness.settings; sys.exit(bool({'torch', 'httpx'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.text(max_size=60))
def test_confined_paths_stay_below(path: str) -> None:
    try:
        relative = confine(path, "/workspace/x")
    except ToolError as error:
        assert error.kind in ("invalid_path", "path_outside_workspace")
        return
    assert not relative.startswith("/") and ".." not in relative.split("/")


def test_paths() -> None:
    assert confine("/workspace/a/../b", "/workspace") == "b"
    assert confine("./", "/workspace/") == "." and confine("a//b", "/") == "a/b"
    for path in ("/workspacex", "..", "a/../../workspace2", "/"):
        with pytest.raises(ToolError):
            confine(path, "/workspace")


@given(st.binary(max_size=200), st.integers(40, 80))
def test_hostile_bytes_become_bounded_text(data: bytes, limit: int) -> None:
    text = clip(decode(data), limit)
    assert len(text) <= limit + 60 and "\x00" not in text
    text.encode()
    assert clean(text) == text


def test_clip_keeps_head_and_tail() -> None:
    assert clip("a" * 10 + "b" * 80 + "c" * 10, 20) == "a" * 10 + "\n[... 80 characters left out ...]\n" + "c" * 10
    assert clip("short", 40) == "short"


@given(st.text())
def test_errors_are_one_line(detail: str) -> None:
    line = error_text("no_match", detail)
    assert line.startswith("error: no match") and "\n" not in line and "\r" not in line and len(line) < 400
