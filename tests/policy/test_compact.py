"""The compact format: calls by template, hostile text, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from woodshed.policy.formats import get_format
from woodshed.policy.formats.base import FormatError, ParsedMessage, conversation
from woodshed.policy.formats.verbs import verbs_of
from woodshed.policy.tokenizer import Piece

CHAT = get_format("compact")
ASSISTANT = "assistant"


def tool(
    name: str, properties: dict[str, Any], verb: str | None = None, template: str = "", **extra: Any
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties), **extra}
    schema: dict[str, Any] = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return schema if verb is None else {**schema, "x-compact": {"verb": verb, "template": template}}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("edit_line", {"path": TEXT, "line": INTEGER, "text": TEXT}, "edit", "{path}\n{line}{text}"),
    tool(
        "read_file", {"path": TEXT, "offset": INTEGER, "deep": {"type": "boolean"}}, "read", "{path}", required=["path"]
    ),
    tool("run_tests", {}, "test"),
    tool("finish", {"message": {"anyOf": [TEXT, {"type": "null"}]}}, "submit", "", required=[]),
    tool("set", {"a": {"type": "number"}, "b": {"type": "boolean"}}, "set", "{a}: {b};"),
    tool("plain", {"x": TEXT, "n": INTEGER}),
    tool("nothing", {}),
]


def call_message(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": ASSISTANT, "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def written(name: str, arguments: dict[str, Any]) -> str:
    start, text, end = CHAT.message(call_message(name, arguments), TOOLS)
    assert (start, end) == (Piece("<call>", True), Piece("<end>", True)) and not text.special
    return text.text


def only_call(parsed: ParsedMessage) -> tuple[str, Any]:
    (call,) = parsed.tool_calls
    return call.name, json.loads(call.arguments_json)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("edit_line", {"path": "a.py", "line": 2, "text": "    return x"}, "edit a.py\n2    return x"),
        ("edit_line", {"path": "a.py", "line": 2, "text": ""}, "edit a.py\n2"),
        ("read_file", {"path": "a b.py"}, "read a b.py"),
        ("read_file", {"path": "a.py", "offset": 3}, 'read {"path": "a.py", "offset": 3}'),
        ("run_tests", {}, "test"),
        ("finish", {}, "submit"),
        ("set", {"a": -1.5, "b": True}, "set -1.5: true;"),
        ("plain", {"x": "é", "n": 1}, 'plain {"x": "é", "n": 1}'),
        ("nothing", {}, "nothing"),
    ],
)
def test_calls_as_text_and_back(name: str, arguments: dict[str, Any], text: str) -> None:
    assert written(name, arguments) == text
    for ending in ("", "<end>"):
        parsed = CHAT.parse(text + ending, TOOLS)
        assert only_call(parsed) == (name, arguments) and parsed.error is None and parsed.content == ""


hostile = st.one_of(
    st.sampled_from(["<end>", "<call>x", '{"path": "x"}', "{path}", "1", "\n2", " ", "a\n3b", "\x1c", "é"]),
    st.text(max_size=12),
)
arguments_of = st.one_of(
    st.tuples(st.just("edit_line"), st.fixed_dictionaries({"path": hostile, "line": st.integers(), "text": hostile})),
    st.tuples(st.just("read_file"), st.fixed_dictionaries({"path": hostile}, optional={"offset": st.integers()})),
    st.tuples(st.just("finish"), st.fixed_dictionaries({}, optional={"message": hostile})),
    st.tuples(st.just("set"), st.fixed_dictionaries({"a": st.floats(allow_nan=False), "b": st.booleans()})),
    st.tuples(st.just("plain"), st.fixed_dictionaries({"x": hostile, "n": st.integers()})),
)


@settings(max_examples=200, deadline=None)
@given(call=arguments_of)
def test_every_call_round_trips(call: tuple[str, dict[str, Any]]) -> None:
    name, arguments = call
    parsed = CHAT.parse(written(name, arguments) + "<end>", TOOLS)
    assert only_call(parsed) == (name, arguments) and parsed.error is None


FIRST = ["edit", "read", "set", "test", "plain", "run_tests", "edit_line"]


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(hostile, st.tuples(st.sampled_from(FIRST), hostile).map("".join)))
@example(text="run_tests")
@example(text="edit_line a.py\n2 x")
def test_whatever_a_policy_writes_is_read_and_written_back(text: str) -> None:
    parsed = CHAT.parse(text, TOOLS)
    if parsed.error and parsed.tool_calls:
        name, arguments = only_call(parsed)
        assert written(name, arguments) == text.removesuffix("<end>")
    elif not parsed.tool_calls:
        assert parsed.content == text.removesuffix("<end>") and parsed.error


@pytest.mark.parametrize(
    ("text", "name", "rest", "error"),
    [
        ("frobnicate a b", "frobnicate", " a b", "unknown verb"),
        ("edit a.py", "edit_line", " a.py", "expected"),
        ("edit a.py\nx = 2", "edit_line", " a.py\nx = 2", "expected"),
        ("edit\n2 x", "edit_line", "\n2 x", "expected"),
        ("edit", "edit_line", "", "expected"),
        ("test now", "run_tests", " now", "expected 'test'"),
    ],
)
def test_what_does_not_fit_is_still_a_call(text: str, name: str, rest: str, error: str) -> None:
    parsed = CHAT.parse(text + "<end>", TOOLS)
    assert only_call(parsed) == (name, {"_text": rest})
    assert parsed.error is not None and error in parsed.error


def test_plain_content() -> None:
    assert CHAT.parse("hello there<end>", []).content == "hello there"
    assert CHAT.message({"role": ASSISTANT, "content": "hi <end>"}, [])[1] == Piece("hi <end>")
    blank = CHAT.parse(" \n", TOOLS)
    assert blank.tool_calls == [] and blank.error is not None and blank.content == " \n"


def test_a_conversation() -> None:
    messages = [
        {"role": "system", "content": "not rendered"},
        {"role": "user", "content": [{"type": "text", "text": "fix: <end>"}]},
        call_message("run_tests", {}),
        {"role": "tool", "tool_call_id": "1", "content": "FAIL"},
    ]
    pieces = conversation(CHAT, messages, TOOLS)
    assert "".join(p.text for p in pieces) == "<bos>fix: <end><call>test<end><obs>FAIL<call>"
    assert [p.text for p in pieces if p.special] == ["<bos>", "<call>", "<end>", "<obs>", "<call>"]
    for n in range(len(messages)):
        shorter = conversation(CHAT, messages[:n], TOOLS, generate=False)
        assert pieces[: len(shorter)] == shorter


def test_errors() -> None:
    with pytest.raises(FormatError, match="one call per turn"):
        calls = call_message("run_tests", {})["tool_calls"]
        CHAT.message({"role": ASSISTANT, "tool_calls": calls + calls}, TOOLS)
    with pytest.raises(FormatError, match="role 'wizard'"):
        CHAT.message({"role": "wizard", "content": ""}, TOOLS)
    with pytest.raises(FormatError, match="'image_url' is not text"):
        CHAT.message({"role": "user", "content": [{"type": "image_url"}]}, TOOLS)
    with pytest.raises(FormatError, match="both have the verb 'test'"):
        verbs_of([tool("a", {}, "test"), tool("b", {}, "test")])
    with pytest.raises(FormatError, match="'missing'"):
        verbs_of([tool("a", {}, "v", "{missing}")])
    with pytest.raises(FormatError, match="one word"):
        verbs_of([tool("a", {}, "two words")])
    with pytest.raises(ValueError, match="known: compact, hermes"):
        get_format("nonsense")


def test_the_name_of_a_tool_with_a_verb_is_no_call():
    parsed = CHAT.parse("run_tests now<end>", TOOLS)
    assert not parsed.tool_calls and parsed.content == "run_tests now"
    assert parsed.error == "no call: run_tests is written 'test'"
