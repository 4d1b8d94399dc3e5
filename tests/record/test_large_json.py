"""Long JSON: read as ``json.loads`` reads it, and refused where it would take too long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.record import large_json

CHARACTERS = st.sampled_from(["\\", '"', "u", "d83d", "\n", "a", "é", "\U0001f600", "\ud83d", "\ude00", "\\u", " "])
TEXTS = st.lists(CHARACTERS, max_size=40).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Treat every text as a long one."""
    monkeypatch.setattr(large_json, "AT_ONCE", -1)
    return monkeypatch


def outcome(read: Any, text: str | bytes) -> Any:
    try:
        return read(text)
    except ValueError:
        return "refused"


@settings(max_examples=300, deadline=None)
@given(value=VALUES, ascii=st.booleans(), indent=st.sampled_from([None, 1]), piece=st.integers(16, 40))
def test_reads_what_json_reads(value: Any, ascii: bool, indent: int | None, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "AT_ONCE", -1)
        patch.setattr(large_json, "_PIECE", piece)
        text = json.dumps(value, ensure_ascii=ascii, indent=indent)
        assert large_json.loads(text) == json.loads(text)
        data = text.encode("utf-8", "surrogatepass")
        assert large_json.loads(data) == json.loads(data)


@settings(max_examples=500, deadline=None)
@given(text=st.text(st.sampled_from('[]{},:"\\u0d8 \n1e-.nulltrfasNIiy\x00'), max_size=40), piece=st.integers(16, 24))
def test_refuses_what_json_refuses(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "AT_ONCE", -1)
        patch.setattr(large_json, "_PIECE", piece)
        ours, theirs = outcome(large_json.loads, text), outcome(json.loads, text)
        assert ours == theirs or (ours != ours and theirs != theirs)  # NaN


def test_numbers_are_read_as_asked(small: pytest.MonkeyPatch) -> None:
    assert large_json.loads('[1, 2.5, {"a": -0}]', lambda text: f"<{text}>") == ["<1>", "<2.5>", {"a": "<-0>"}]


@pytest.mark.parametrize("one", ["[]", "{}", "1", '""', "null", '{"a":1}'])
def test_a_flood_of_values_is_refused(small: pytest.MonkeyPatch, one: str) -> None:
    small.setattr(large_json, "VALUES", 1000)
    assert len(large_json.loads("[" + ",".join([one] * 400) + "]")) == 400
    with pytest.raises(ValueError, match="more than 1000 values"):
        large_json.loads("[" + ",".join([one] * 1001) + "]")


def test_nesting_and_long_numbers_are_refused() -> None:
    with pytest.raises(RecursionError):
        large_json.loads("[" * 300_000)
    with pytest.raises(ValueError):
        large_json.loads("1" * 300_000)


def test_other_encodings() -> None:
    text = json.dumps(["é" * 200_000, "\U0001f600"], ensure_ascii=False)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert large_json.loads(text.encode(encoding)) == json.loads(text)
    with pytest.raises(ValueError):
        large_json.loads(b'"' + b"\xff" * 300_000 + b'"')
