"""Malformed and unusual calls in ``qwen3_coder``, ``llama3`` and ``kimi_k2``: which calls are read, and the errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.policy.chat_samples import TOOLS, assistant
from woodshed.policy.formats import get_format
from woodshed.policy.formats.reading import parameter_types, read_value, write_value

EDIT = "<function=edit_line>\n<parameter=path>\na\n</parameter>\n"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
FINISH = "<|tool_call_begin|>functions.finish:0<|tool_call_argument_begin|>{}<|tool_call_end|>"

QWEN = [
    ("<tool_call>\n" + EDIT, "<tool_call>\n" + EDIT, [], "path without </parameter> before"),
    ("<tool_call>\n<function=finish>", "<tool_call>\n<function=finish>", [], "expected <parameter=NAME>"),
    ("<tool_call><function=f><parameter=x>1", "<tool_call><function=f><parameter=x>1", [], "without </parameter>"),
    ('<tool_call>\n{"name": "f"}\n</tool_call>', '<tool_call>\n{"name": "f"}\n</tool_call>', [], "without <function="),
    (EDIT + EDIT.partition("\n")[2] + "</function>", None, [], "path appears twice"),
    (EDIT + "junk</function>", None, [], "path without </parameter> before"),
    ("<tool_call>x\n" + EDIT + "</function>", None, [("edit_line", {"path": "a"})], "without <function=NAME>"),
    ("a\n" + EDIT + "</function>", "a", [("edit_line", {"path": "a"})], None),
    ("see <function=finish>", "see <function=finish>", [], None),
    ("<tool_call><function=finish></function></tool_call> b", " b", [("finish", {})], None),
    ("<tool_call>\n<function=nope>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", "",
     [("nope", {"x": "1"})], None),
    ("<think>x</think>y<|endoftext|>", "y", [], None),
]  # fmt: skip
LLAMA = [
    ('{"name": "finish", "parameters": {', None, [], "not a JSON object"),
    ('{"name": "finish"}', None, [], 'expected {"name": NAME, "parameters": {...}}'),
    ('{"name": 1, "parameters": {}}', None, [], "expected"),
    ("<|python_tag|>print(1)", None, [], "no call after <|python_tag|>"),
    ('{"name": "f", "parameters": [1]}', "", [("f", [1])], "arguments of a tool call"),
    ('{"name": "f", "parameters": {"a": "\\ud800"}}', None, [], "surrogate"),
    ('{"name": "f", "parameters": ' + "[" * 99999, None, [], "nested"),
    ('{"name": "f", "parameters": {}}; {"name": "g", "par', '; {"name": "g", "par', [("f", {})], "not a JSON object"),
    ('<|python_tag|>{"type": "function", "name": "f", "parameters": {"n": "1"}}<|eom_id|>', "", [("f", {"n": "1"})],
     None),
    ('Sure.\n```\n{"name": "f", "arguments": {}}\n```', "Sure.\n```\n```", [("f", {})], None),
    ('It is\n{"name": "left-pad", "version": "1"}', None, [], None),
    ('{"answer": 1}', None, [], None),
    ("int main()\n{\n  return 0;\n}", None, [], None),
]  # fmt: skip
KIMI = [
    (SECTION + "<|tool_call_begin|>finish<|tool_call_argument_begin|>{}<|tool_call_end|>", None, [], "NAME:NUMBER"),
    (FINISH, None, [], "outside <|tool_calls_section_begin|>"),
    (SECTION + SECTION_END, None, [], "no call after"),
    (SECTION + FINISH.removesuffix("<|tool_call_end|>"), None, [], "without <|tool_call_end|>"),
    (SECTION + FINISH.replace("{}", "{bad}"), None, [], "functions.finish:0 are not a JSON object"),
    (SECTION + FINISH.replace("{}", "[1]"), "", [("finish", [1])], "arguments of a tool call"),
    ("a" + SECTION + "x" + FINISH + SECTION_END + "b", "axb", [("finish", {})], "must begin"),
    (SECTION + FINISH.replace("{}", "{") + FINISH, FINISH.replace("{}", "{"), [("finish", {})], "not a JSON object"),
    (SECTION + "\n" + FINISH.replace("functions.", " ") + "\n", "", [("finish", {})], None),
    ("<think>never ends", "", [], None),
]
CASES = [("qwen3_coder", *c) for c in QWEN] + [("llama3", *c) for c in LLAMA] + [("kimi_k2", *c) for c in KIMI]


@pytest.mark.parametrize(("name", "text", "content", "calls", "error"), CASES)
def test_what_a_policy_may_write(
    name: str, text: str, content: str | None, calls: list[tuple[str, Any]], error: str | None
) -> None:
    parsed = get_format(name).parse(text, TOOLS)
    assert [(c.name, json.loads(c.arguments_json)) for c in parsed.tool_calls] == calls
    assert (parsed.error is None) if error is None else (parsed.error is not None and error in parsed.error)
    if content is not None or not calls:
        assert parsed.content == (text if content is None else content)


@pytest.mark.parametrize("name", ["qwen3_coder", "llama3", "kimi_k2"])
def test_arguments_that_are_no_object_are_shown_as_they_were_written(name: str) -> None:
    said = assistant("", [("finish", {})])
    for raw in ("{broken", "[1]", "[" * 99999):
        said["tool_calls"][0]["function"]["arguments"] = raw
        assert raw in "".join(p.text for p in get_format(name).message(said, TOOLS))


def test_kimi_ids() -> None:
    """Ids chosen by clients are numbered by position and native ones stay; no number is used twice."""
    chat = get_format("kimi_k2")
    talk = [assistant("", [("finish", {}), ("finish", {})]), {"role": "tool", "tool_call_id": "b", "content": "x"}]
    talk[0]["tool_calls"][0]["id"], talk[0]["tool_calls"][1]["id"] = "functions.finish:6", "b"
    said, result = ["".join(p.text for p in pieces) for pieces in chat.messages(talk, TOOLS)]
    assert "functions.finish:6<|tool_call_argument" in said and "functions.finish:7<|tool_call_argument" in said
    assert "## Return of functions.finish:7\nx" in result
    assert "## Return of b\nx" in "".join(p.text for p in chat.message(talk[1], TOOLS))
    parsed = chat.parse(SECTION + FINISH * 3 + SECTION_END, TOOLS)
    assert [c.id for c in parsed.tool_calls] == [f"functions.finish:{i}" for i in range(3)]
    with pytest.raises(ValueError, match="tool_call_id"):
        chat.message({"role": "tool", "content": "x"}, TOOLS)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 12\n", 12),
        ({"type": "integer"}, "1.5", 1.5),
        ({"type": "integer"}, "x", "x"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"type": "array"}, "['a']", "['a']"),
        ({"type": "object"}, '{"a": "</parameter>"}', {"a": "</parameter>"}),
        ({"type": "object"}, '{"a": 1} x', '{"a": 1} x'),
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "1", "1"),
        ({"$ref": "#/$defs/Line"}, "1", 1),
        ({"$ref": "#/$defs/Loop"}, "1", "1"),
        ({"$ref": "#/nowhere"}, "1", "1"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": True}, "true", True),
        ({}, "1", "1"),
    ],
)
def test_values_have_the_types_of_the_schema(schema: dict[str, Any], text: str, value: Any) -> None:
    definitions = {"Line": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}
    tool = {"name": "t", "parameters": {"properties": {"x": schema}, "$defs": definitions}}
    types = parameter_types([{"broken": 1}, tool], "t")["x"]
    assert read_value(text, types) == value and type(read_value(text, types)) is type(value)
    assert parameter_types([tool], "other") == {}


def test_values_are_written_as_the_published_template_does() -> None:
    written = [write_value(v) for v in ("a\n", True, None, 1.5, ["é"], {"a": None})]
    assert written == ["a\n", "True", "None", "1.5", '["é"]', '{"a": null}']
