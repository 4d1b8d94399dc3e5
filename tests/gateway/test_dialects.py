"""The three dialects through their vendors' clients against a real server: equal conversations have equal tokens."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest

from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.segments_wire import Finished
from woodshed.policy.decoder import Decoder

from .parts import ADMIN
from .real import logprob_gap, server, teach

pytestmark = pytest.mark.slow

SYSTEM = "You mend small programs."
TASK = "The sum is wrong. Look at both files."
THOUGHT = "Two files, two calls."
SAID = "I read both files first, <both> of them."
CALLS = [("read_file", {"path": "sum.py"}), ("read_file", {"path": "tests/test_sum.py", "lines": 1.0})]
RESULTS = ["return a - b <|im_end|>", "assert total(1, 2) == 3"]
ANSWER = "sum.py subtracts; it should add."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "number"}}}
ABOUT = ("read_file", "Read a file of the workspace")
CHAT_TOOLS = [{"type": "function", "function": {"name": ABOUT[0], "description": ABOUT[1], "parameters": SCHEMA}}]
MESSAGES_TOOLS = [{"name": ABOUT[0], "description": ABOUT[1], "input_schema": SCHEMA}]
RESPONSES_TOOLS = [
    {"type": "function", "name": ABOUT[0], "description": ABOUT[1], "parameters": SCHEMA, "strict": False}
]


@dataclass
class Site:
    url: str
    decoder: Decoder


@dataclass
class Reply:
    """A reply as a client sees it, in any dialect."""

    thinking: str
    text: str
    calls: list[tuple[str, Any]]
    finish: str
    prompt_tokens: int
    sampled_tokens: int


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("dialects")
    calls = [
        {"id": str(i), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(CALLS)
    ]
    conversation = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
        {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": str(i), "content": text} for i, text in enumerate(RESULTS)),
        {"role": "assistant", "content": ANSWER},
    ]
    decoder = teach(directory, conversation, CHAT_TOOLS)
    # without native kernels a step takes a millisecond or more, so that tokens do not all arrive at once
    (directory / "settings.json").write_text(json.dumps({"engine": {"native": "off"}}))
    with server(directory, "--max-tokens", "200", "--settings", str(directory / "settings.json")) as (url, _):
        yield Site(url, decoder)


class Talk:
    """One conversation of one key; a subclass speaks a dialect through its vendor's client."""

    def __init__(self, url: str, key: str, *, stream: bool) -> None:
        self.stream = stream
        self.history: list[Any] = []
        self.connect(url, key)

    def connect(self, url: str, key: str) -> None:
        raise NotImplementedError

    async def say(self, **fields: Any) -> Reply:
        raise NotImplementedError

    def results(self) -> None:
        """Append the results of the calls of the last reply."""
        raise NotImplementedError


class Chat(Talk):
    def connect(self, url: str, key: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
        self.history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]

    async def say(self, **fields: Any) -> Reply:
        given: Any = {"model": "m", "messages": self.history, "tools": CHAT_TOOLS, "temperature": 0.0, **fields}
        if self.stream:
            manager = self.client.chat.completions.stream(**given, stream_options={"include_usage": True})
            async with manager as stream:
                async for _ in stream:  # the client's get_final_completion refuses a reply that was cut
                    pass
                completion = stream.current_completion_snapshot
        else:
            completion = await self.client.chat.completions.create(**given)
        choice, usage = completion.choices[0], completion.usage
        self.message = choice.message
        self.history = [*self.history, choice.message.model_dump(exclude={"parsed"}, exclude_none=True)]
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []]
        thinking = getattr(choice.message, "reasoning_content", None) or ""
        return Reply(
            thinking,
            choice.message.content or "",
            calls,
            choice.finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
        )

    def results(self) -> None:
        for call, text in zip(self.message.tool_calls, RESULTS):
            self.history.append({"role": "tool", "tool_call_id": call.id, "content": text})


class Messages(Talk):
    def connect(self, url: str, key: str) -> None:
        self.client = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
        self.history = [{"role": "user", "content": TASK}]

    async def say(self, **fields: Any) -> Reply:
        # the client has no argument for the temperature
        fields["extra_body"] = {"temperature": fields.pop("temperature", 0.0), **fields.get("extra_body", {})}
        given: Any = {"model": "m", "system": SYSTEM, "messages": self.history, "tools": MESSAGES_TOOLS}
        given |= {"max_tokens": 200, **fields}
        if self.stream:
            async with self.client.messages.stream(**given) as stream:
                message = await stream.get_final_message()
        else:
            message = await self.client.messages.create(**given)
        self.blocks = [b for b in message.content if b.type == "tool_use"]
        # as agents send it back: only the fields that a request may have
        keep = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
        keep["thinking"] = ("type", "thinking", "signature")
        content = [{k: getattr(b, k) for k in keep[b.type]} for b in message.content]
        self.history = [*self.history, {"role": "assistant", "content": content}]
        usage = message.usage
        return Reply(
            "".join(b.thinking for b in message.content if b.type == "thinking"),
            "".join(b.text for b in message.content if b.type == "text"),
            [(b.name, b.input) for b in self.blocks],
            message.stop_reason,
            usage.input_tokens + usage.cache_read_input_tokens,
            usage.output_tokens,
        )

    def results(self) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": text}]}
            for block, text in zip(self.blocks, RESULTS)
        ]
        self.history.append({"role": "user", "content": content})


class Responses(Talk):
    def connect(self, url: str, key: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
        self.history = [{"role": "user", "content": [{"type": "input_text", "text": TASK}]}]

    async def say(self, **fields: Any) -> Reply:
        given: Any = {"model": "m", "instructions": SYSTEM, "input": self.history, "tools": RESPONSES_TOOLS}
        given |= {"temperature": 0.0, **fields}
        if self.stream:
            async with self.client.responses.stream(**given) as stream:
                async for event in stream:
                    if event.type in ("response.completed", "response.incomplete"):
                        response = event.response
        else:
            response = await self.client.responses.create(**given)
        self.calls = [item for item in response.output if item.type == "function_call"]
        self.history = [*self.history, *(item.model_dump(exclude_none=True) for item in response.output)]
        for item in self.history:
            item.pop("parsed_arguments", None)
        thinking = [part.text for item in response.output if item.type == "reasoning" for part in item.content]
        usage = response.usage
        return Reply(
            "".join(thinking),
            response.output_text,
            [(c.name, json.loads(c.arguments)) for c in self.calls],
            response.status,
            usage.input_tokens,
            usage.output_tokens,
        )

    def results(self) -> None:
        for call, text in zip(self.calls, RESULTS):
            self.history.append({"type": "function_call_output", "call_id": call.call_id, "output": text})


TALKS: list[type[Talk]] = [Chat, Messages, Responses]
FINISHES = {Chat: ("tool_calls", "stop"), Messages: ("tool_use", "end_turn"), Responses: ("completed", "completed")}


def run(site: Site, test: Callable[[GatewayAdmin], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with GatewayAdmin(site.url, ADMIN) as admin:
            await test(admin)

    asyncio.run(main())


async def whole(site: Site, admin: GatewayAdmin, kind: type[Talk], *, stream: bool) -> Finished:
    """Run the conversation that the policy has learned; returns what the gateway recorded."""
    id = f"{kind.__name__}-{stream}"
    talk = kind(site.url, await admin.open(id), stream=stream)
    first = await talk.say()
    assert (first.thinking, first.text, first.calls) == (THOUGHT, SAID, CALLS)
    talk.results()
    second = await talk.say()
    assert (second.thinking, second.text, second.calls) == ("", ANSWER, [])
    assert (first.finish, second.finish) == FINISHES[kind]
    finished = await admin.finish(id)
    (segment,) = finished.segments
    assert second.prompt_tokens + second.sampled_tokens == len(segment)
    assert first.sampled_tokens + second.sampled_tokens == segment.sampled.sum()
    return finished


def test_the_same_conversation_has_the_same_tokens_in_every_dialect(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        every = [await whole(site, admin, kind, stream=stream) for kind in TALKS for stream in (False, True)]
        segments = [finished.segments[0] for finished in every]
        assert all(finished.prefix_breaks == 0 and finished.requests == 2 for finished in every)
        for segment in segments:
            assert segment.tokens.tolist() == segments[0].tokens.tolist()
            assert segment.sampled.tolist() == segments[0].sampled.tolist()
            assert segment.spans == segments[0].spans
            assert np.allclose(segment.logprobs, segments[0].logprobs, atol=1e-5)
        # log-probabilities are those of the distribution that was sampled from: greedy decoding has a point mass
        assert set(segments[0].logprobs.tolist()) == {0.0}

    run(site, test)


@pytest.mark.parametrize("kind", TALKS)
def test_recorded_log_probabilities_are_those_of_the_network(site: Site, kind: type[Talk]) -> None:
    """At temperature 1 and with a seed, so that tokens other than the learned ones are sampled."""

    async def test(admin: GatewayAdmin) -> None:
        talk = kind(site.url, await admin.open("t"), stream=True)
        for turn in range(3):
            extra = {"seed": 11 + turn, "logit_bias": {}}
            await talk.say(temperature=1.0, tools=[], extra_body=extra)
            talk.history.append({"role": "user", "content": "go on"})
        (segment,) = (await admin.finish("t")).segments
        assert logprob_gap(site.decoder, segment) < 1e-4

    run(site, test)


def test_a_trajectory_may_change_its_dialect(site: Site) -> None:
    """The first turn in one dialect, the second in another: still one segment."""

    async def test(admin: GatewayAdmin) -> None:
        for first in TALKS:
            for second in TALKS:
                key = await admin.open("t")
                one, two = first(site.url, key, stream=False), second(site.url, key, stream=True)
                await one.say()
                await two.say()  # the same request again, which starts another segment
                two.results()
                assert (await two.say()).text == ANSWER
                one.results()
                assert (await one.say()).text == ANSWER
                finished = await admin.finish("t")
                assert finished.requests == 4
                assert [len(s) for s in finished.segments] == [len(finished.segments[0])] * 2

    run(site, test)


def test_events_of_messages_come_in_the_documented_order(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        talk = Messages(site.url, await admin.open("t"), stream=True)
        given: Any = {"model": "m", "system": SYSTEM, "messages": talk.history, "tools": MESSAGES_TOOLS}
        events = [
            event
            async for event in await talk.client.messages.create(
                **given, max_tokens=200, stream=True, extra_body={"temperature": 0}
            )
        ]
        kinds = [event.type for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        assert events[0].message.usage.input_tokens > 0 and events[0].message.content == []
        position = 1
        blocks = []
        while kinds[position] == "content_block_start":
            index, block = events[position].index, events[position].content_block
            assert index == len(blocks)
            deltas = []
            position += 1
            while kinds[position] == "content_block_delta":
                assert events[position].index == index
                deltas.append(events[position].delta)
                position += 1
            assert kinds[position] == "content_block_stop" and events[position].index == index
            position += 1
            blocks.append((block.type, [d.type for d in deltas], deltas))
        assert position == len(kinds) - 2
        assert [b[0] for b in blocks] == ["thinking", "text", "tool_use", "tool_use"]
        assert [set(b[1]) for b in blocks[:2]] == [{"thinking_delta", "signature_delta"}, {"text_delta"}]
        assert blocks[0][1].count("signature_delta") == 1 and blocks[0][1][-1] == "signature_delta"
        # a busy event loop may send several tokens together
        assert max(len(blocks[0][1]), len(blocks[1][1])) > 1, "it did not stream"
        assert "".join(d.text for d in blocks[1][2]) == SAID
        assert [json.loads("".join(d.partial_json for d in b[2])) for b in blocks[2:]] == [c[1] for c in CALLS]
        usage = events[-2].usage
        assert usage.input_tokens + usage.cache_read_input_tokens == events[0].message.usage.input_tokens

    run(site, test)


def test_events_of_responses_come_in_the_documented_order(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        talk = Responses(site.url, await admin.open("t"), stream=True)
        given: Any = {"instructions": SYSTEM, "input": talk.history, "tools": RESPONSES_TOOLS, "temperature": 0}
        events = [e async for e in await talk.client.responses.create(**given, model="m", stream=True)]
        assert [e.sequence_number for e in events] == list(range(len(events)))
        kinds: list[str] = []
        for event in events:
            if not (kinds and kinds[-1] == event.type == "response.output_text.delta"):
                kinds.append(event.type.removeprefix("response."))
        kinds = [k for i, k in enumerate(kinds) if not (k.endswith(".delta") and k == kinds[i - 1])]

        def item(*inner: str) -> list[str]:
            return ["output_item.added", *inner, "output_item.done"]

        def text(kind: str) -> list[str]:
            return item("content_part.added", f"{kind}.delta", f"{kind}.done", "content_part.done")

        call = item("function_call_arguments.delta", "function_call_arguments.done")
        items = [*text("reasoning_text"), *text("output_text"), *call, *call]
        assert kinds == ["created", "in_progress", *items, "completed"]
        final = events[-1].response
        done = [e.item for e in events if e.type == "response.output_item.done"]
        assert [d.to_dict() for d in done] == [item.to_dict() for item in final.output]
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
        assert events[0].response.id == final.id and events[0].response.status == "in_progress"
        assert final.instructions == SYSTEM and final.status == "completed" and final.store is False
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == SAID

    run(site, test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", TALKS)
def test_a_reply_that_is_cut_says_so_and_goes_on(site: Site, kind: type[Talk], stream: bool) -> None:
    async def test(admin: GatewayAdmin) -> None:
        talk = kind(site.url, await admin.open("t"), stream=stream)
        limit = {"max_output_tokens": 12} if kind is Responses else {"max_tokens": 12}
        reply = await talk.say(**limit)
        assert reply.finish == {Chat: "length", Messages: "max_tokens", Responses: "incomplete"}[kind]
        assert reply.sampled_tokens == 12 and reply.thinking == THOUGHT[: len(reply.thinking)]
        talk.history.append({"role": "user", "content": "go on"})
        await talk.say()
        assert len((await admin.finish("t")).segments) == 1

    run(site, test)


def test_a_stop_sequence_ends_a_message(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        for stream in (False, True):
            talk = Messages(site.url, await admin.open("t"), stream=stream)
            reply = await talk.say(stop_sequences=["nothing", "files first"])
            assert (reply.finish, reply.text) == ("stop_sequence", "I read both ")
            talk.history.append({"role": "user", "content": "go on"})
            await talk.say()
            assert len((await admin.finish("t")).segments) == 1

    run(site, test)


def test_errors_have_the_vendor_s_shape(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        for kind, vendor in ((Chat, openai), (Messages, anthropic), (Responses, openai)):
            for stream in (False, True):
                talk = kind(site.url, "ws-wrong", stream=stream)
                with pytest.raises(vendor.AuthenticationError) as refused:
                    await talk.say()
                talk = kind(site.url, await admin.open("t"), stream=stream)
                with pytest.raises(vendor.BadRequestError) as bad:
                    await talk.say(temperature=9.0)
                with pytest.raises(vendor.BadRequestError) as long:
                    talk.history.append({"role": "user", "content": "word and word " * 4000})
                    await talk.say()
                if kind is Messages:
                    shapes = [e.value.response.json() for e in (refused, bad, long)]
                    assert [s["type"] for s in shapes] == ["error"] * 3
                    kinds = [s["error"]["type"] for s in shapes]
                    assert kinds == ["authentication_error", "invalid_request_error", "invalid_request_error"]
                    assert "temperature" in shapes[1]["error"]["message"]
                    assert shapes[2]["error"]["message"].startswith("prompt is too long: ")
                else:
                    codes = [(e.value.code, e.value.param) for e in (refused, bad, long)]
                    where = "input" if kind is Responses else "messages"
                    assert codes[0][0] == "invalid_api_key" and codes[1] == ("invalid_value", "temperature")
                    assert codes[2] == ("context_length_exceeded", where)
                assert (await admin.finish("t")).requests == 0

    run(site, test)


def test_what_needs_a_stored_response_is_refused(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        talk = Responses(site.url, await admin.open("t"), stream=False)
        for field, value in (("previous_response_id", "resp_1"), ("background", True), ("conversation", "conv_1")):
            with pytest.raises(openai.BadRequestError, match="stores nothing between requests") as refused:
                await talk.say(**{field: value})
            assert refused.value.param == field

    run(site, test)


def test_both_kinds_of_keys_models_and_counts(site: Site) -> None:
    async def test(admin: GatewayAdmin) -> None:
        key = await admin.open("t")
        for given in ({"api_key": key}, {"auth_token": key}):
            async with anthropic.AsyncAnthropic(base_url=site.url, max_retries=0, **given) as client:
                conversation: Any = {"model": "m", "system": SYSTEM, "tools": MESSAGES_TOOLS}
                conversation["messages"] = [{"role": "user", "content": TASK}]
                counted = await client.messages.count_tokens(**conversation)
                said = await client.messages.create(**conversation, max_tokens=1)
                usage = said.usage
                assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
                assert [m.id async for m in client.models.list()] == ["woodshed"]
                assert (await client.models.retrieve("woodshed")).display_name == "woodshed"
        async with openai.AsyncOpenAI(base_url=site.url + "/v1", api_key=key, max_retries=0) as client:
            given = {"model": "m", "instructions": SYSTEM, "input": TASK, "tools": RESPONSES_TOOLS}
            assert (await client.responses.input_tokens.count(**given)).input_tokens == counted.input_tokens
            assert [m.id async for m in client.models.list()] == ["woodshed"]
            assert (await client.models.retrieve("woodshed")).owned_by == "woodshed"
            with pytest.raises(openai.NotFoundError, match="woodshed"):
                await client.models.retrieve("other")
        assert (await admin.finish("t")).requests == 2  # counting is not a turn

    run(site, test)


async def cancelled(url: str) -> int:
    async with httpx.AsyncClient() as http:
        text = (await http.get(url + "/metrics")).text
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("woodshed_gateway_cancelled"))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", TALKS)
def test_a_client_that_leaves_stops_the_engine(site: Site, kind: type[Talk], stream: bool) -> None:
    """A reply that would fill the context is cancelled; nothing of it is recorded, and the key stays usable."""

    async def test(admin: GatewayAdmin) -> None:
        talk = kind(site.url, await admin.open("t"), stream=stream)
        before = await cancelled(site.url)
        endless = {"max_output_tokens": 3500} if kind is Responses else {"max_tokens": 3500}
        ends = {str(token): -100 for token in (0, 2)}  # <|endoftext|> and <|im_end|>
        extra = {"logit_bias": ends, "seed": 5}

        async def running() -> bool:
            return (await admin.engine())["running"] > 0

        async def stopped() -> bool:
            return not await running() and await cancelled(site.url) == before + 1

        call = asyncio.create_task(talk.say(temperature=1.0, tools=[], extra_body=extra, **endless))
        await until(running)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(stopped)
        assert (await talk.say()).text == SAID
        finished = await admin.finish("t")
        assert finished.requests == 1 and len(finished.segments) == 1

    run(site, test)
