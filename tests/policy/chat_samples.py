"""Random conversations with tools, for the tests of the chat formats."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
STRING, INTEGER, NUMBER, BOOLEAN = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def tool(name: str, properties: Json, *, required: tuple[str, ...] = (), **extra: Any) -> Json:
    parameters = {"type": "object", "properties": properties, "required": list(required), **extra}
    return {"type": "function", "function": {"name": name, "description": " é <b>\n", "parameters": parameters}}


TOOLS = [
    tool(
        "edit_line", {"path": STRING, "line": INTEGER, "text": {**STRING, "description": " what "}}, required=("path",)
    ),
    tool(
        "set",
        {
            "flag": {**BOOLEAN, "default": False},
            "ratio": {**NUMBER, "minimum": 0.5},
            "tags": {"type": "array", "items": STRING},
            "extra": {"$ref": "#/$defs/Extra"},
            "limit": {"anyOf": [INTEGER, {"type": "null"}], "default": None},
            "mode": {"enum": ["fast", "slow"]},
        },
        **{"$defs": {"Extra": {"type": "object"}}},
    ),
    tool("finish", {}),
]

TAGS = [
    "<tool_call>", "</tool_call>", "<function=set>", "</function>", "<parameter=line>", "</parameter>", "\n",
    "<tool_response>", "</tool_response>", "<think>", "</think>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
    "<|python_tag|>", "<|eot_id|>", "<|eom_id|>", '{"name": "set", "parameters": {}}', '"', "{", "}", "; ", "\\",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", "functions.set:0", "null", "None", "true", "12", "e\u0301", "\u200d", " ", "\r\n",
]  # fmt: skip
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
hostile = st.one_of(plain, st.lists(st.one_of(st.sampled_from(TAGS), plain), max_size=6).map("".join))
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), floats, hostile),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(hostile, inner, max_size=3)),
    max_leaves=5,
)
arguments = st.one_of(
    st.tuples(
        st.just("edit_line"),
        st.fixed_dictionaries({"path": hostile}, optional={"line": st.integers(), "text": hostile}),
    ),
    st.tuples(
        st.just("set"),
        st.fixed_dictionaries(
            {},
            optional={
                "flag": st.booleans(),
                "ratio": st.one_of(st.integers(), floats),
                "tags": st.lists(hostile, max_size=3),
                "extra": st.dictionaries(hostile, values, max_size=3),
                "limit": st.one_of(st.none(), st.integers()),
                "mode": st.sampled_from(["fast", "slow"]),
            },
        ),
    ),
    st.tuples(st.just("finish"), st.just({})),
)
Call = tuple[str, Json]
replies = st.tuples(hostile, st.lists(arguments, max_size=3))


def assistant(content: str, calls: list[Call], first: int = 0) -> Json:
    """An assistant's message; the ids of its calls are counted from ``first`` in the form of Kimi K2."""
    message: Json = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"functions.{name}:{first + i}", "type": "function", "function": {"name": name, "arguments": made}}
            for i, (name, made) in enumerate(calls)
        ]
    return message


@st.composite
def conversations(draw: Any) -> list[Json]:
    """System, user, then turns: a reply and the results of its calls, or what the user says next."""
    messages: list[Json] = [{"role": "system", "content": draw(hostile)}, {"role": "user", "content": draw(hostile)}]
    count = 0
    for content, calls in draw(st.lists(replies, max_size=3)):
        message = assistant(content, calls, count)
        messages.append(message)
        count += len(calls)
        for call in message.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(hostile)})
        if not calls:
            messages.append({"role": "user", "content": draw(hostile)})
    return messages


_UNSAYABLE = re.compile(r"</parameter>\s*(<parameter=[^<>\n]+>|</function>)")
_CONTENT = {
    "qwen3_coder": re.compile(r"<tool_call>|^<function=[^<>\n]+>|\A\s*<think>", re.MULTILINE),
    "llama3": re.compile(r"<\|python_tag\|>|^[ \t]*\{", re.MULTILINE),
    "kimi_k2": re.compile(r"<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>|\A\s*<think>"),
}


def sayable(name: str, content: str, calls: list[Call]) -> bool:
    """False where the published format itself is ambiguous: text that is a call, or a value that ends its own tag."""
    if _CONTENT[name].search(content.strip()):
        return False
    if name != "qwen3_coder":
        return True
    return not any(_UNSAYABLE.search(text) for _, made in calls for text in _texts(made))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [t for item in value.items() for part in item for t in _texts(part)]
    if isinstance(value, list):
        return [t for part in value for t in _texts(part)]
    return [value] if isinstance(value, str) else []
