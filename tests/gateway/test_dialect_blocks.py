"""Any blocks that a client may send, any text that a policy may write: in every dialect, over ASGI."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woodshed.gateway.dialects.messages_requests import from_input, parse_messages, to_input
from woodshed.gateway.dialects.responses_requests import parse_responses
from woodshed.gateway.errors import ApiError
from woodshed.gateway.messages import same_message

from .parts import COMPACT, HERMES, TOOLS, ScriptedEngine, replies
from .site import Site, run

SLOW = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
WORDS = st.sampled_from(
    ["user", "assistant", "system", "tool", "text", "thinking", "tool_use", "tool_result", "image", "message",
     "refusal", "reasoning", "function_call", "function_call_output", "item_reference", "input_text", "output_text",
     "fc_1_0", "redacted_thinking", "reasoning_text", "", "\ud800", "<|im_end|>", "{}", '{"a": 1}']
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "thinking", "signature", "id", "name", "input", "tool_use_id", "is_error",
     "call_id", "arguments", "output", "summary", "status", "annotations", "cache_control"]
)  # fmt: skip
LEAVES = st.one_of(WORDS, WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
JUNK = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=5
)
SYSTEMS = st.one_of(st.none(), st.text(max_size=3), JUNK)
TEXT: list[dict[str, Any]] = [{"type": "text", "text": "a"}]
BLOCKS: list[dict[str, Any]] = [
    *TEXT,
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "tool_use", "id": "1", "name": "run_tests", "input": {"a": 1}},
    {"type": "tool_result", "tool_use_id": "1", "content": TEXT, "is_error": True},
    {"type": "tool_result", "tool_use_id": "1"},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"type": "message", "role": "assistant", "id": "msg_1_0", "content": [{"type": "output_text", "text": "b"}]},
    {"type": "reasoning", "id": "rs_1_0", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
    {"type": "function_call", "id": "fc_1_0", "call_id": "1", "name": "run_tests", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "d"}]},
    {"role": "developer", "content": [{"type": "input_text", "text": "e"}]},
]


def nearly(valid: list[dict[str, Any]]) -> st.SearchStrategy[Any]:
    """Lists of blocks, most of them right or with one field spoiled."""
    right = st.sampled_from(valid)
    spoiled = st.builds(lambda block, key, junk: {**block, key: junk}, right, KEYS, JUNK)
    return st.lists(st.one_of(right, right, right, spoiled, JUNK), max_size=5)


def check_answer(site: Site, response: Any, roots: tuple[str, ...]) -> None:
    error = response.json().get("error")
    if response.status_code == 200:
        assert not error and len(site.engine.calls) == 1
        return
    assert response.status_code == 400, response.text
    assert error["param"] is not None and error["param"].startswith(roots), error
    assert error["param"] in error["message"] or error["code"] == "invalid_message"
    assert not site.engine.calls


@SLOW
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "user"]), nearly(BLOCKS)), min_size=1, max_size=4), JUNK
)
def test_blocks_of_messages_are_rendered_or_refused(turns: list[tuple[str, Any]], system: Any) -> None:
    """In the format that has the most to refuse: one call a message."""

    async def test(site: Site) -> None:
        messages = [{"role": role, "content": blocks} for role, blocks in turns]
        messages.append({"role": "user", "content": "go"})
        body = {"model": "m", "max_tokens": 5, "messages": messages, "system": system}
        raw = json.dumps(body).encode()
        headers = {"x-api-key": site.key}
        response = await site.http.post("/v1/messages", content=raw, headers=headers)
        check_answer(site, response, ("messages", "system"))

    run(ScriptedEngine(lambda _: COMPACT.encode("a")), test)


@SLOW
@given(nearly(ITEMS), SYSTEMS)
def test_items_of_responses_are_rendered_or_refused(items: Any, instructions: Any) -> None:
    async def test(site: Site) -> None:
        raw = json.dumps({"model": "m", "input": items, "instructions": instructions}).encode()
        headers = {"authorization": f"Bearer {site.key}"}
        response = await site.http.post("/v1/responses", content=raw, headers=headers)
        check_answer(site, response, ("input", "instructions"))

    run(ScriptedEngine(lambda _: COMPACT.encode("a")), test)


@SLOW
@given(st.sampled_from(["/v1/messages", "/v1/responses"]), st.data())
def test_other_fields_are_used_or_refused(path: str, data: st.DataObject) -> None:
    names = {
        "/v1/messages": [
            "messages",
            "max_tokens",
            "tools",
            "tool_choice",
            "stop_sequences",
            "temperature",
            "stream",
            "thinking",
            "metadata",
            "output_config",
            "container",
        ],
        "/v1/responses": [
            "input",
            "max_output_tokens",
            "tools",
            "tool_choice",
            "include",
            "text",
            "truncation",
            "metadata",
            "reasoning",
            "previous_response_id",
            "top_p",
        ],
    }[path]

    async def test(site: Site) -> None:
        body = {"messages": [{"role": "user", "content": "a"}], "input": "a", "max_tokens": 5}
        field = data.draw(st.sampled_from(names))
        raw = json.dumps({**body, field: data.draw(JUNK)}).encode()
        response = await site.http.post(path, content=raw, headers={"x-api-key": site.key})
        if response.status_code == 200 and field == "stream":
            return
        check_answer(site, response, (field,))

    run(ScriptedEngine(lambda _: COMPACT.encode("a")), test)


# What a policy may write: pieces of these, in the format that has thinking and parallel calls.
SAID = st.lists(
    st.sampled_from(
        ["<think>\n", "\n</think>\n\n", "<tool_call>\n", "\n</tool_call>", "hm", " ", "\n", "é\U0001f600",
         "\ufffd", "<",
         '<tool_call>\n{"name": "run_tests", "arguments": {}}\n</tool_call>',
         '<tool_call>\n{"name": "x", "arguments": {"a": 1.0, "b": [1e400, -0.0, "\\u2028"]}}\n</tool_call>',
         '<tool_call>\n{"name": "x", "arguments": {"_arguments": "{}"}}\n</tool_call>',
         '<tool_call>\n{"name": "x", "arguments": {"n": NaN}}\n</tool_call>',
         '<tool_call>\n{"name": "x", "arguments": [1, 2]}\n</tool_call>',
         '<tool_call>\n{"name": "", "arguments": "not json"}\n</tool_call>']
    ),
    max_size=6,
).map("".join)  # fmt: skip
TURNS = st.lists(st.tuples(SAID, st.booleans(), st.booleans()), min_size=1, max_size=3)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@SLOW
@given(turns=TURNS)
def test_an_honest_client_never_breaks_the_prefix(dialect: str, turns: list[tuple[str, bool, bool]]) -> None:
    """Whatever is sampled, whole or streamed, cut or not: what a client sends back extends the segment."""
    said = [(text + ("<|im_end|>" if stops else ""), stream) for text, stops, stream in turns]

    async def test(site: Site) -> None:
        client = {"chat": Chat, "messages": Messages, "responses": Responses}[dialect](site)
        for _, stream in said:
            await client.turn(stream=stream)
        (segment,) = (await site.admin.finish("t")).segments
        for _, prompt, completion in site.engine.calls:
            assert segment.tokens[: len(prompt) + len(completion.tokens)].tolist() == prompt + completion.tokens

    run(ScriptedEngine(replies(*(text for text, _ in said), tokenizer=HERMES)), test, format="hermes")


class Client:
    """Sends a conversation back the way agent programs do: what it was given, as JavaScript would write it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.history: list[Any] = [{"role": "user", "content": "go"}]
        self.parse_error = ""

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        text = (await self.site.post(path, body)).text
        lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        return [strict(line) for line in lines if line != "[DONE]"]


def strict(text: str) -> Any:
    """JSON as other clients read it: no NaN, and whole numbers are integers."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    def real(digits: str) -> Any:
        value = float(digits)
        return int(value) if value.is_integer() else value

    return json.loads(text, parse_constant=refuse, parse_float=real)


class Chat(Client):
    async def turn(self, *, stream: bool) -> None:
        body = {"messages": self.history, "tools": TOOLS, "stream": stream}
        message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
        if stream:
            for event in await self.events("/v1/chat/completions", body):
                delta = event["choices"][0]["delta"]
                message["content"] += delta.get("content") or ""
                for part in delta.get("tool_calls", ()):
                    if "id" in part:
                        message["tool_calls"].append({**part, "function": dict(part["function"])})
                    else:
                        call = message["tool_calls"][part["index"]]["function"]
                        call["arguments"] += part["function"]["arguments"]
        else:
            reply = strict((await self.site.post("/v1/chat/completions", body)).text)
            message |= {k: v for k, v in reply["choices"][0]["message"].items() if v is not None}
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in message["tool_calls"]]
        self.history += [message, *(results or [{"role": "user", "content": "on"}])]


class Messages(Client):
    async def turn(self, *, stream: bool) -> None:
        tools = [
            {"name": t["function"]["name"], "input_schema": t["function"]["parameters"], "cache_control": {"type": "x"}}
            for t in TOOLS
        ]
        body = {"messages": self.history, "tools": tools, "stream": stream, "max_tokens": 99}
        content: list[dict[str, Any]] = []
        if stream:
            pieces: list[str] = []
            for event in await self.events("/v1/messages", body):
                delta = event.get("delta", {})
                if event["type"] == "content_block_start":
                    content.append(dict(event["content_block"]))
                    pieces = []
                elif event["type"] == "content_block_delta":
                    field = delta["type"].removesuffix("_delta")
                    if field == "input_json":
                        pieces.append(delta["partial_json"])
                    else:
                        content[-1][field] += delta[field]
                elif event["type"] == "content_block_stop" and pieces:
                    content[-1]["input"] = strict("".join(pieces))
                elif event["type"] == "message_delta":
                    self.parse_error = delta.get("parse_error", "")
        else:
            reply = strict((await self.site.post("/v1/messages", body)).text)
            content, self.parse_error = reply["content"], reply.get("parse_error", "")
        assert all(block.get(block["type"], "x") for block in content), "an empty block, which Anthropic's API refuses"
        calls = [block for block in content if block["type"] == "tool_use"]
        answer = [{"type": "tool_result", "tool_use_id": c["id"], "content": "ok"} for c in calls]
        answer = answer or [{"type": "text", "text": "on"}]
        self.history += [{"role": "assistant", "content": content}, {"role": "user", "content": answer}]


class Responses(Client):
    async def turn(self, *, stream: bool) -> None:
        tools = [{"type": "function", **t["function"], "strict": True} for t in TOOLS]
        body = {"input": self.history, "tools": tools, "stream": stream}
        if stream:
            events = await self.events("/v1/responses", body)
            output = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            reply = events[-1]["response"]
            assert output == reply["output"]
        else:
            reply = strict((await self.site.post("/v1/responses", body)).text)
            output = reply["output"]
        self.parse_error = reply.get("parse_error", "")
        calls = [item for item in output if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "ok"} for c in calls]
        # A reply to which nothing is added is followed by the next one: the ids keep them apart.
        self.history += [*output, *results]


@SLOW
@given(
    st.one_of(
        st.text(max_size=20),
        JUNK.map(lambda value: json.dumps(value, ensure_ascii=False)),
        st.dictionaries(st.sampled_from(["_arguments", "a"]), JUNK, max_size=2).map(json.dumps),
    )
)
def test_arguments_survive_the_way_through_an_object(arguments: str) -> None:
    there = to_input(arguments)
    json.dumps(there, allow_nan=False)
    back = from_input(json.loads(json.dumps(there)))

    def call(text: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": text}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "", "function": function}]}

    assert same_message(call(arguments), call(back))


def test_blocks_become_the_messages_of_chat_completions() -> None:
    body = {
        "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {}}],
        "messages": [
            {"role": "user", "content": [*TEXT, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [BLOCKS[1], *TEXT, BLOCKS[2], {**BLOCKS[2], "id": "2"}]},
            {"role": "user", "content": [BLOCKS[3], {**BLOCKS[4], "tool_use_id": "2"}, *TEXT]},
        ],
        "max_tokens": 5,
    }
    call = {"id": "1", "type": "function", "function": {"name": "run_tests", "arguments": '{"a": 1}'}}
    assert parse_messages(json.dumps(body).encode()).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "a", "tool_calls": [call, {**call, "id": "2"}], "reasoning_content": "hm"},
        {"role": "tool", "content": "a", "tool_call_id": "1"},
        {"role": "tool", "content": "", "tool_call_id": "2"},
        {"role": "user", "content": "a"},
    ]


def test_items_become_the_messages_of_chat_completions() -> None:
    own = {"type": "message", "role": "assistant", "content": "mine"}
    later = {**ITEMS[3], "id": "fc_2_0", "call_id": "2"}
    items = [ITEMS[0], ITEMS[2], ITEMS[1], ITEMS[3], ITEMS[4], own, own, ITEMS[1], later, ITEMS[5]]
    function = {"name": "run_tests", "arguments": "{}"}
    body = {"input": items, "instructions": "i"}
    assert parse_responses(json.dumps(body).encode()).messages == [
        {"role": "system", "content": "i"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning_content": "c",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "d", "tool_call_id": "1"},
        {"role": "assistant", "content": "mine"},
        {"role": "assistant", "content": "mine"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "2", "type": "function", "function": function}]},
        {"role": "system", "content": "e"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "messages[0].role"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "disable_parallel_tool_use"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": 1, "input_schema": {}}]}, "tools[0].name"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)  # fmt: skip
def test_bad_fields_of_messages_are_named(fields: dict[str, Any], param: str) -> None:
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(ApiError) as refused:
        parse_messages(json.dumps(body).encode())
    assert refused.value.param == param and refused.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_bad_fields_of_responses_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_responses(json.dumps({"input": "x", **fields}).encode())
    assert refused.value.param == param and refused.value.status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_cannot_be_read_is_text_with_an_error(stream: bool) -> None:
    bad = '<tool_call>\n{"name": run_tests}\n</tool_call><|im_end|>'

    async def test(site: Site) -> None:
        for client in (Messages(site), Responses(site)):
            await client.turn(stream=stream)
            said = client.history[1]
            (part,) = said["content"]
            assert said["role"] == "assistant" and "run_tests" in part["text"] and "JSON" in client.parse_error
        assert len((await site.admin.finish("t")).segments) == 2  # two clients, two conversations

    run(ScriptedEngine(replies(bad, bad, tokenizer=HERMES)), test, format="hermes")


def test_what_is_sampled_token_by_token_is_streamed_so() -> None:
    said = COMPACT.encode("one two three four five six seven eight")

    async def test(site: Site) -> None:
        site.engine.delay = 0.01
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 99, "stream": True}
        answer = await site.post("/v1/messages", body)
        events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
        deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(deltas) == COMPACT.decode(said) and len(deltas) > len(said) // 2, deltas

    run(ScriptedEngine(lambda _: said), test)


def test_an_error_after_the_first_text_ends_the_stream_in_the_dialect() -> None:
    """The trajectory is closed while its reply streams."""
    bodies: dict[str, Any] = {
        "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 99},
        "/v1/responses": {"input": "x"},
    }

    async def test(site: Site) -> None:
        site.engine.delay = 0.002
        for path, body in bodies.items():
            site.key = await site.admin.open("t")
            seen = await events_until_closed(site, path, {**body, "stream": True})
            if path == "/v1/messages":
                assert seen[0]["type"] == "message_start" and seen[-1]["type"] == "error"
                assert seen[-1]["error"]["code"] == "trajectory_closed"
            else:
                assert seen[0]["type"] == "response.created" and seen[-1]["type"] == "response.failed"
                assert "trajectory_closed" in seen[-1]["response"]["error"]["message"]
                assert [e["sequence_number"] for e in seen] == list(range(len(seen)))

    run(ScriptedEngine(lambda _: COMPACT.encode("one two three " * 50)), test)


async def events_until_closed(site: Site, path: str, body: Any) -> list[dict[str, Any]]:
    """Drives the ASGI app by hand, since its client for tests gives nothing before the end."""
    inbox = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[bytes] = []

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if not sent:
                asyncio.get_running_loop().create_task(site.admin.delete("t"))
            sent.append(message["body"])

    headers = [(b"x-api-key", site.key.encode())]
    scope: Any = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await site.app.state.gateway.endpoints[path](scope, receive, send)
    lines = b"".join(sent).decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
