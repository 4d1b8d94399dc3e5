"""The encoding that values are compared by, and the strict decoding of what a box answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading.cases import _parse
from woodshed.grading.cases_runner import encode

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3) | st.booleans(), inner, max_size=3)
        | st.frozensets(st.integers(0, 5), max_size=3)
    ),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """An independent statement of type-exact equality: the value with every part tagged by its type."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, [typed(v) for v in value])
    if isinstance(value, dict):
        return ("dict", {(type(k).__name__, k): typed(v) for k, v in value.items()})
    if isinstance(value, float):
        return ("float", repr(value))
    return (type(value).__name__, value)


@given(PLAIN, PLAIN)
def test_encodings_are_equal_exactly_where_values_and_types_are(a: Any, b: Any) -> None:
    assert (encode(a) == encode(b)) == (typed(a) == typed(b))


def test_what_looks_equal_but_is_not() -> None:
    values = [
        1,
        1.0,
        True,
        "1",
        b"1",
        [1],
        (1,),
        {1},
        frozenset({1}),
        {1: 1},
        {"1": 1},
        {True: 1},
        None,
        "None",
        [],
        (),
    ]
    assert len({encode(v) for v in values}) == len(values)
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    assert encode(["a,b"]) != encode(["a", "b"])


class _Int(int):
    pass


class _Str(str):
    pass


class _List(list):  # type: ignore[type-arg]
    pass


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "value", [_Int(1), _Str("a"), _List([1]), _Equal(), [_Int(1)], {"a": _Equal()}, {_Str("a"): 1}]
)
def test_subclasses_and_objects_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="not a plain value"):
        encode(value)


def test_frames_are_decoded_strictly() -> None:
    modules = {"m": {"path": "m.py", "function": "f", "inputs": [[1], [2]]}}

    def frame(answers: Any) -> bytes:
        return b"NONCE " + json.dumps(answers).encode() + b"\n"

    good = {"m": [["1", None], [None, "ValueError"]]}
    assert _parse(b"noise\n" + frame(good), "NONCE", modules) == (good, "")
    for bad in (
        b"",
        frame(good) * 2,
        b"NONCE {",
        b"OTHER " + json.dumps(good).encode(),
        frame([]),
        frame({}),
        frame({"m": []}),
        frame({"m": [["1", None]] * 3}),
        frame({"m": [["1", None], [1, None]]}),
        frame({"m": [["1", "E"], ["1", None]]}),
        frame({"m": [None, None]}),
        frame({"m": good["m"], "n": []}),
        b"NONCE " + b"[" * 100_000,
    ):
        answers, problem = _parse(bad, "NONCE", modules)
        assert answers == {} and problem
