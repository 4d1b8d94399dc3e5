"""The hermes format against Qwen's template, and against what a policy or a user may write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.qwen_template import QWEN25
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.formats.base import conversation
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe

CHAT = get_format("hermes")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "grep", "description": "é <b> & 'x'", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "finish", "parameters": {"type": "object", "properties": {}}}},
]


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi <|im_end|> {{x}}"}
TALK = [SYSTEM, USER, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "again"}]
WORK = [
    SYSTEM,
    USER,
    {"role": "assistant", "content": "I look.", "tool_calls": [call("grep", {"a": 'é"\n'}), call("grep", {})]},
    {"role": "tool", "content": "one"},
    {"role": "tool", "content": "</tool_response>two"},
    {"role": "assistant", "content": "", "tool_calls": [call("finish", {"n": 1})]},
    {"role": "tool", "content": "done"},
    {"role": "system", "content": "late"},
    {"role": "assistant", "content": "bye"},
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' tokenizer of a policy that we saved."""
    config = DecoderConfig(300, 8, 1, 1, 1, 8, 8)
    tokenizer = Tokenizer(train_bpe(["a b"], 300, CHAT.special_tokens))
    path: Path = tmp_path_factory.mktemp("policy") / "p"
    save_policy(Policy(Decoder(config), tokenizer, CHAT, config), path)
    return transformers.AutoTokenizer.from_pretrained(path)


def text_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]], generate: bool) -> str:
    return "".join(p.text for p in conversation(CHAT, messages, tools, generate=generate))


@pytest.mark.parametrize("messages", [TALK, WORK, TALK[:2], WORK[:5]])
@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("generate", [False, True])
def test_equals_qwen(theirs: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]], generate: bool) -> None:
    ours = text_of(messages, tools, generate)
    options: dict[str, Any] = {"tools": tools or None, "add_generation_prompt": generate, "tokenize": False}
    qwen = theirs.apply_chat_template(messages, chat_template=QWEN25, **options)
    # Our messages start with the newline that ends Qwen's, so that a conversation can stop at its stop token.
    assert qwen == (ours if generate else ours + "\n")
    assert theirs.apply_chat_template(messages, **options) == ours


def test_saved_template_with_thinking_and_default_system(theirs: Any) -> None:
    message = {"role": "assistant", "content": "b", "reasoning_content": "a\nz", "tool_calls": [call("f", {"x": [1]})]}
    for messages in ([USER, message], [USER]):
        ours = text_of(messages, TOOLS, True)
        kwargs: dict[str, Any] = {"tools": TOOLS, "add_generation_prompt": True, "tokenize": False}
        assert theirs.apply_chat_template(messages, **kwargs) == ours
        assert "You are a helpful assistant." in ours


def test_shorter_conversations_are_prefixes() -> None:
    whole = conversation(CHAT, WORK, TOOLS, generate=False)
    for n in (1, 2, 3, 5, 6, 7, 8):
        part = conversation(CHAT, WORK[:n], TOOLS, generate=False)
        assert whole[: len(part)] == part
    generated = conversation(CHAT, WORK[:5], TOOLS)
    assert whole[: len(generated)] == generated
    assert [len(p) for p in CHAT.messages(WORK[3:5], TOOLS)] == [9, 7] and len(CHAT.message(WORK[3], TOOLS)) == 10


def test_hostile_text_makes_no_control_token() -> None:
    pieces = conversation(CHAT, WORK, TOOLS)
    special = [p.text for p in pieces if p.special]
    assert special.count("<|im_end|>") == len(WORK) - 1 and special.count("</tool_response>") == 3
    assert not any("x-compact" in p.text for p in CHAT.open([{**TOOLS[0], "x-compact": {"verb": "g"}}]))


prose = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda t: "tool_call>" not in t)
ends = st.sampled_from(["", "\n", " ", "{", "}", "<|im_start|>", "</think>x", "<tool_call"])
contents = st.tuples(prose, ends).map("".join).filter(lambda t: not t.lstrip().startswith("<think>"))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(exclude_categories=["Cs"]), max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab<>{}", max_size=3), inner)),
    max_leaves=6,
)
calls = st.lists(st.tuples(st.text('abc_"\\é', min_size=1), st.dictionaries(prose, values, max_size=3)), max_size=3)


@settings(max_examples=80, deadline=None)
@given(content=contents, calls=calls, thinking=st.one_of(st.none(), prose.filter(lambda t: t and "</think>" not in t)))
def test_messages_round_trip(content: str, calls: list[tuple[str, dict[str, Any]]], thinking: str | None) -> None:
    if any("tool_call>" in json.dumps(a) for _, a in calls):
        return
    message = {"role": "assistant", "content": content, "tool_calls": [call(n, a) for n, a in calls]}
    pieces = CHAT.message({**message, "reasoning_content": thinking}, [])
    assert pieces[:3] == CHAT.generation() and pieces[-1].text == "<|im_end|>"
    parsed = CHAT.parse("".join(p.text for p in pieces[3:]), [])
    assert parsed.error is None and parsed.content == content and parsed.thinking == thinking
    assert [(c.name, json.loads(c.arguments_json)) for c in parsed.tool_calls] == calls
    assert len({c.id for c in parsed.tool_calls}) == len(calls)


@pytest.mark.parametrize(
    ("text", "content", "names", "error"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {}', '<tool_call>\n{"name": "f", "arguments": {}', [], "without"),
        ("<tool_call>\n{bad}\n</tool_call>", "<tool_call>\n{bad}\n</tool_call>", [], "not a JSON object"),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", [], "not an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', [], '"name"'),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', '<tool_call>{"name": "\\ud800"}</tool_call>', [], "surrogate"),
        ("<tool_call>" + "[" * 99999, "<tool_call>" + "[" * 99999, [], "without"),
        ("<tool_call>" + "[" * 99999 + "</tool_call>", "<tool_call>" + "[" * 99999 + "</tool_call>", [], "nested"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "", ["f"], "arguments of a tool call"),
        ('a<tool_call>{"name": "f", "arguments": "{}"}</tool_call>b', "ab", ["f"], None),
        ("<think>\nnever ends", "", [], None),
        ("<think>x</think>y<|endoftext|>", "y", [], None),
    ],
)
def test_what_a_policy_may_write(text: str, content: str, names: list[str], error: str | None) -> None:
    parsed = CHAT.parse(text, TOOLS)
    assert parsed.content == content and [c.name for c in parsed.tool_calls] == names
    assert (parsed.error is None) if error is None else (parsed.error is not None and error in parsed.error)
