import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.engine.models import MOE, decoder, running
from woodshed.gateway import trajectories
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.dialects.chat_requests import parse_chat
from woodshed.gateway.errors import ApiError
from woodshed.gateway.key_limits import KeyLimits

from .parts import ADMIN, COMPACT, HERMES, TOOLS, ScriptedEngine, replies, tool
from .site import USER, Site, run


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_conversation_with_tools_is_one_segment() -> None:
    async def test(site: Site) -> None:
        response = await site.chat(tools=TOOLS, logprobs=True)
        assert response.status_code == 200
        body = response.json()
        message = body["choices"][0]["message"]
        call = message["tool_calls"][0]
        assert call["function"]["name"] == "read_file" and json.loads(call["function"]["arguments"]) == {"path": "a.py"}
        assert body["choices"][0]["finish_reason"] == "tool_calls" and message["content"] is None
        first = site.engine.calls[0]
        items = body["choices"][0]["logprobs"]["content"]
        assert [i["logprob"] for i in items] == first[2].logprobs
        assert b"".join(bytes(i["bytes"]) for i in items) == b"read a.py<end>"
        assert body["usage"]["prompt_tokens"] == len(first[1])
        assert body["usage"]["completion_tokens"] == len(first[2].tokens)
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "1<end>x"}
        again = await site.chat([*USER, message, answer], tools=TOOLS)
        assert again.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "finish"
        finished = await site.admin.finish("t")
        assert finished.prefix_breaks == 0 and finished.requests == 2
        assert finished.about == {"source": "train", "labels": {"a": "b"}, "task": "org/x", "group": "g"}
        (segment,) = finished.segments
        last = site.engine.calls[1]
        assert segment.tokens.tolist() == last[1] + last[2].tokens
        assert segment.tokens.tolist()[: len(first[1]) + len(first[2].tokens)] == first[1] + first[2].tokens
        assert [s.role for s in segment.spans] == ["user", "assistant", "tool", "assistant"]
        assert {c[0] for c in site.engine.calls} == set(site.engine.released)
        assert (await site.chat()).status_code == 401

    run(ScriptedEngine(replies("read a.py<end>", "submit<end>")), test)


def test_streamed_and_whole_replies_say_the_same() -> None:
    text = "<think>\nhm\n</think>\n\nLook < here: é \U0001f600\n"
    text += '<tool_call>\n{"name": "run_tests", "arguments": {}}\n</tool_call><|im_end|>'

    async def test(site: Site) -> None:
        whole = (await site.chat(tools=TOOLS)).json()["choices"][0]
        other = await site.admin.open("u")
        response = await site.chat(tools=TOOLS, stream=True, key=other, stream_options={"include_usage": True})
        assert response.headers["content-type"] == "text/event-stream"
        parts = chunks(response)
        deltas = [c["choices"][0]["delta"] for c in parts if c["choices"]]
        assert deltas[0]["role"] == "assistant"
        content = "".join(d.get("content") or "" for d in deltas)
        thinking = "".join(d.get("reasoning_content") or "" for d in deltas)
        assert content == whole["message"]["content"] == "Look < here: é \U0001f600"
        assert thinking == whole["message"]["reasoning_content"] == "hm"
        assert sum(bool(d.get("content")) for d in deltas) > 2  # it did stream
        calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        assert calls[0]["function"]["name"] == "run_tests" and calls[0]["id"]
        assert "".join(c["function"]["arguments"] for c in calls) == "{}"
        assert [c["choices"][0]["finish_reason"] for c in parts if c["choices"]][-1] == "tool_calls"
        assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] > 0
        echoed = {"role": "assistant", "content": content, "tool_calls": whole["message"]["tool_calls"]}
        done = await site.chat([*USER, echoed, {"role": "user", "content": "ok"}], tools=TOOLS, key=other)
        assert done.status_code == 200
        assert len((await site.admin.finish("u")).segments) == 1

    engine = ScriptedEngine(replies(text, text, "bye<|im_end|>", tokenizer=HERMES))
    run(engine, test, format="hermes")


def test_a_call_that_cannot_be_read_is_content_with_an_error() -> None:
    bad = '<tool_call>\n{"name": run_tests}\n</tool_call><|im_end|>'

    async def test(site: Site) -> None:
        message = (await site.chat(tools=TOOLS)).json()["choices"][0]["message"]
        assert "run_tests" in message["content"] and "JSON" in message["parse_error"]
        parts = chunks(await site.chat(tools=TOOLS, stream=True))
        deltas = [c["choices"][0]["delta"] for c in parts]
        assert "".join(d.get("content") or "" for d in deltas) == message["content"]
        assert deltas[-1]["parse_error"] == message["parse_error"]

    run(ScriptedEngine(replies(bad, bad, tokenizer=HERMES)), test, format="hermes")


def test_thinking_may_be_left_out_and_sent_again() -> None:
    async def test(site: Site) -> None:
        more = {"role": "user", "content": "go on"}
        first = (await site.chat()).json()["choices"][0]["message"]
        assert first["reasoning_content"] == "hm"
        second = (await site.chat([*USER, {"role": "assistant", "content": first["content"]}, more])).json()
        await site.chat([*USER, first, more, second["choices"][0]["message"], more])
        finished = await site.admin.finish("t", messages=True)
        assert finished.prefix_breaks == 0
        assert finished.messages[0][1]["reasoning_content"] == "hm"

    texts = ("<think>\nhm\n</think>\n\na<|im_end|>", "b<|im_end|>", "c<|im_end|>")
    run(ScriptedEngine(replies(*texts, tokenizer=HERMES)), test, format="hermes")


def test_tool_choice_none_makes_no_calls_and_keeps_the_segment() -> None:
    async def test(site: Site) -> None:
        first = (await site.chat(tools=TOOLS)).json()["choices"][0]["message"]
        later = [*USER, first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "ok"}]
        message = (await site.chat(later, tools=TOOLS, tool_choice="none")).json()["choices"][0]["message"]
        assert message["content"] == "test" and "tool_calls" not in message
        assert len((await site.admin.finish("t")).segments) == 1

    run(ScriptedEngine(replies("test<end>", "test<end>")), test)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_text_and_tokens(stream: bool) -> None:
    async def test(site: Site) -> None:
        response = await site.chat(stop=["OP", "zz"], stream=stream, max_tokens=100)
        if stream:
            parts = chunks(response)
            content = "".join(c["choices"][0]["delta"].get("content") or "" for c in parts)
            assert parts[-1]["choices"][0]["finish_reason"] == "stop"
        else:
            choice = response.json()["choices"][0]
            content = choice["message"]["content"]
            assert choice["finish_reason"] == "stop"
        assert content == "see ST"
        reply = {"role": "assistant", "content": content}
        await site.chat([*USER, reply, {"role": "user", "content": "go"}])
        (segment,) = (await site.admin.finish("t")).segments
        sampled = segment.tokens[segment.spans[1].start : segment.spans[1].end].tolist()
        assert COMPACT.decode(sampled) == "<call>see STOP<end>"
        assert segment.sampled[segment.spans[1].start : segment.spans[1].end].tolist()[-1] is False  # added stop token

    engine = ScriptedEngine(replies("see STOP and more and more", "x<end>"))
    engine.delay = 0.001
    run(engine, test)


def test_a_stop_string_costs_no_routes() -> None:
    """A real engine with experts: what every token before the last was routed to is recorded."""

    async def main() -> None:
        config = replace(MOE, vocab_size=COMPACT.vocab_size)
        async with running(decoder(config, sharpness=2.0)) as engine:
            site = Site(engine)  # type: ignore[arg-type]
            site.key = await site.admin.open("t")
            ask = {"seed": 1, "max_tokens": 80, "logit_bias": {str(COMPACT.special_ids["<end>"]): -100}}
            whole = (await site.chat(**ask)).json()["choices"][0]["message"]["content"]
            await site.admin.finish("t")
            site.key = await site.admin.open("u")
            stop = next(c for at, c in enumerate(whole) if c.isascii() and 20 < at == whole.index(c))
            first = (await site.chat(**ask, stop=[stop])).json()["choices"][0]
            assert first["message"]["content"] == whole[: whole.index(stop)] and first["finish_reason"] == "stop"
            await site.chat([*USER, first["message"], {"role": "user", "content": "go on"}], max_tokens=5)
            (segment,) = (await site.admin.finish("u")).segments
            assert segment.routes is not None and (segment.routes[:-1, 0] >= 0).all()
            assert (segment.routes[-1] == -1).all()
            await site.http.aclose()

    asyncio.run(main())


def test_equal_requests_have_equal_seeds_and_the_turns_of_an_episode_have_not() -> None:
    """Else every turn would be sampled with the same random numbers, and an episode would not be one of the policy."""

    async def test(site: Site) -> None:
        messages, asked = list(USER), []
        for turn in range(3):
            asked.append(list(messages))
            reply = (await site.chat(messages, seed=7)).json()["choices"][0]["message"]
            messages += [reply, {"role": "user", "content": f"result {turn}"}]
        for again, fields in ((asked[1], {"seed": 7}), (asked[1], {"seed": 8}), (asked[1], {})):
            await site.chat(again, **fields)
        *turns, equal, other, none = [sampling.seed for sampling in site.engine.samplings]
        assert equal == turns[1] and len({*turns, other}) == 4 and none is None
        site.key = await site.admin.open("u", limits=KeyLimits(seed=7))
        await site.chat(seed=3)
        assert site.engine.samplings[-1].seed == turns[0]

    run(ScriptedEngine(replies(*["a<end>"] * 7)), test)


def test_sampling_fields_reach_the_engine() -> None:
    async def test(site: Site) -> None:
        await site.chat(
            temperature=0.5,
            top_p=0.9,
            max_completion_tokens=3,
            max_tokens=99,
            seed=7,
            top_k=4,
            min_p=0.1,
            logit_bias={"5": -100},
            unknown_field={"x": 1},
            parallel_tool_calls=True,
        )
        sampling = site.engine.samplings[0]
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.9, 3)
        assert (sampling.top_k, sampling.min_p, sampling.logit_bias) == (4, 0.1, {5: -100.0})
        assert sampling.stop_ids == (COMPACT.special_ids["<end>"],)
        await site.chat()
        assert site.engine.samplings[1].max_tokens == 17 and site.engine.samplings[1].temperature == 1.0

    run(ScriptedEngine(lambda _: COMPACT.encode("a b c d e f")), test, max_tokens=17)


def _said(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": ["hello"]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "invalid_value"),
        ({"messages": [_said([{"type": "image_url"}])]}, "messages[0].content[0]", "invalid_value"),
        ({"messages": [_said(5)]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 65}, "n", "unsupported_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice", "unsupported_value"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice", "unsupported_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "unsupported_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "invalid_value"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "logprobs_mode": "cooked"}, "logprobs_mode", "unsupported_value"),
        ({"logprobs": True, "logprobs_mode": ["raw"]}, "logprobs_mode", "unsupported_value"),
        ({"logprobs_mode": "raw"}, "logprobs_mode", "invalid_value"),
        ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"frequency_penalty": "much"}, "frequency_penalty", "invalid_value"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_field(fields: dict[str, Any], param: str, code: str) -> None:
    async def test(site: Site) -> None:
        messages = fields.get("messages", USER)
        response = await site.chat(messages, **{k: v for k, v in fields.items() if k != "messages"})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, code)
        assert error["type"] == "invalid_request_error" and param in error["message"]
        assert not site.engine.calls

    run(ScriptedEngine(replies()), test)


def test_tools_are_those_of_the_request_and_no_others() -> None:
    tail = b',"tools":' + json.dumps(TOOLS).encode() + b"}"
    plain = b'{"messages":[{"role":"user","content":"x"}]'
    assert parse_chat(plain + tail).tools == TOOLS
    text = json.dumps('",' + tail.decode()).encode()
    for body in (
        b'{"messages":[{"role":"user","content":' + text + b"}]}",
        b'{"messages":[{"role":"user","content":"x","tools":' + json.dumps(TOOLS).encode() + b"}]}",
        b'{"messages":[{"role":"user","content":"x"}],"extra":{"a":1' + tail + b"}",
    ):
        assert parse_chat(body).tools == []
        assert parse_chat(body).messages == json.loads(body)["messages"]
    for body in (b'{"messages":[{"role":"user"' + tail, b"[1" + tail):
        with pytest.raises(ApiError, match="not JSON"):
            parse_chat(body)


def test_a_schema_that_the_format_cannot_use_is_refused() -> None:
    async def test(site: Site) -> None:
        twice = [tool("a", "same", ""), tool("b", "same", "")]
        for stream in (False, True):
            response = await site.chat(tools=twice, stream=stream)
            assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_tools"

    run(ScriptedEngine(replies()), test)


def test_other_errors() -> None:
    async def test(site: Site) -> None:
        headers = {"authorization": f"Bearer {site.key}"}
        broken = await site.http.post("/v1/chat/completions", content=b"{", headers=headers)
        assert broken.status_code == 400 and broken.json()["error"]["code"] == "invalid_json"
        long = await site.chat([{"role": "user", "content": "word " * 400}])
        assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
        streamed = await site.chat([{"role": "user", "content": "word " * 400}], stream=True)
        assert streamed.status_code == 400 and streamed.json()["error"]["code"] == "context_length_exceeded"
        large = await site.chat([{"role": "user", "content": "x" * 9000}])
        assert large.status_code == 413
        nowhere = await site.http.get("/v1/nothing")
        assert nowhere.status_code == 404 and nowhere.json()["error"]["code"] == "not_found"
        failing = await site.chat()
        assert failing.status_code == 500 and failing.json()["error"]["code"] == "internal_error"

    run(ScriptedEngine(replies(), context=200), test, max_body=8000)


def test_keys_open_their_own_trajectory_only() -> None:
    async def test(site: Site) -> None:
        other = await site.admin.open("u")
        await site.chat(key=other)
        assert (await site.admin.finish("t")).segments == []
        finished = await site.admin.finish("u")
        assert len(finished.segments) == 1
        for key in (site.key, other, "nonsense", ADMIN):
            assert (await site.chat(key=key)).status_code == 401
        assert (await site.http.post("/v1/chat/completions", json={})).status_code == 401
        fresh = await site.admin.open("v")
        stranger = GatewayAdmin("http://gateway", fresh, client=site.http)
        for call in (stranger.finish("v"), stranger.delete("v"), stranger.open("w"), stranger.list()):
            with pytest.raises(GatewayError, match="401"):
                await call
        assert key not in repr(vars(site.app.state.gateway.trajectories.keys))

    run(ScriptedEngine(replies("a<end>")), test)


def test_any_id_leads_to_its_own_trajectory() -> None:
    ids = ["b", "./b", "a/../b", "..", "b/", "b/finish", "b?messages", "b#c", "a%2Fb", "é/ü"]

    async def test(site: Site) -> None:
        for id in ids:
            await site.admin.open(id)
        for number, id in enumerate(ids):
            assert await site.admin.resume(id)
            if number % 2:
                assert (await site.admin.finish(id)).id == id
            else:
                await site.admin.delete(id)
            assert [each["id"] for each in await site.admin.list()] == ["t", *ids[number + 1 :]]
        for id in ('"t\\n"', '"a\\nb"', '"\\ud800"'):  # no path leads there, or one to "t"
            headers = {"authorization": f"Bearer {ADMIN}"}
            refused = await site.http.post("/admin/trajectories", content=f'{{"id": {id}}}', headers=headers)
            assert refused.status_code == 400 and refused.json()["error"]["message"].startswith("id:")
        assert [each["id"] for each in await site.admin.list()] == ["t"]

    run(ScriptedEngine(replies()), test)


def test_opening_again_starts_afresh() -> None:
    async def test(site: Site) -> None:
        await site.chat()
        key = await site.admin.open("t")
        assert (await site.chat()).status_code == 401
        assert (await site.chat(key=key)).status_code == 200
        finished = await site.admin.finish("t")
        assert finished.requests == 1 and len({c[0] for c in site.engine.calls}) == 2
        assert (await site.admin.finish("t")).usage == finished.usage, "an answer that was lost can be asked for again"
        with pytest.raises(GatewayError, match="trajectory_not_found"):
            await site.admin.finish("never opened")

    run(ScriptedEngine(replies("a<end>", "b<end>")), test)


def test_deleting_cancels_what_runs() -> None:
    async def test(site: Site) -> None:
        site.engine.gate = asyncio.Event()
        running = asyncio.create_task(site.chat())
        while not site.engine.samplings:
            await asyncio.sleep(0)
        await site.admin.delete("t")
        response = await running
        assert response.status_code == 409 and response.json()["error"]["code"] == "trajectory_closed"
        assert site.engine.calls == []

    run(ScriptedEngine(replies("a<end>")), test)


def test_a_client_that_leaves_stops_the_engine_and_records_nothing() -> None:
    async def test(site: Site) -> None:
        site.engine.gate = asyncio.Event()
        body = json.dumps({"messages": USER}).encode()
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {site.key}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        call = asyncio.create_task(site.app.state.gateway.endpoints["/v1/chat/completions"](scope, inbox.get, send))
        while not site.engine.samplings:
            await asyncio.sleep(0)
        inbox.put_nowait({"type": "http.disconnect"})
        await call
        assert sent == [] and site.engine.calls == []
        site.engine.gate.set()
        assert (await site.chat()).status_code == 200
        finished = await site.admin.finish("t")
        assert finished.requests == 1 and len(finished.segments) == 1

    run(ScriptedEngine(lambda _: COMPACT.encode("a")), test)


def test_feedback_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "FEEDBACK", 3)
    monkeypatch.setattr(trajectories, "FEEDBACK_BYTES", 1500)

    async def test(site: Site) -> None:
        read = 0

        async def long() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(10_000):
                read += 100
                yield b"x" * 100

        headers = {"authorization": f"Bearer {site.key}"}
        large = await site.http.post("/v1/feedback", content=long(), headers=headers)
        assert large.status_code == 413 and large.json()["error"]["code"] == "request_too_large" and read < 1300
        for size, status in ((900, 200), (900, 403), (10, 200), (10, 200), (10, 403)):
            answer = await site.post("/v1/feedback", {"text": "x" * size})
            assert answer.status_code == status
        assert answer.json()["error"]["code"] == "feedback_full"
        assert len((await site.admin.finish("t")).feedback) == 3

    run(ScriptedEngine(replies()), test, max_body=1024)


def test_feedback_that_arrives_after_the_end_is_refused() -> None:
    """It would be in no record, and in the journal that of the next trajectory with this id."""

    async def test(site: Site) -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield b'{"kind":'
            await site.admin.finish("t")
            yield b'"thumbs_up"}'

        headers = {"authorization": f"Bearer {site.key}"}
        answer = await site.http.post("/v1/feedback", content=slow(), headers=headers)
        assert answer.status_code == 409 and answer.json()["error"]["code"] == "trajectory_closed"
        assert (await site.admin.finish("t")).feedback == []

    run(ScriptedEngine(replies()), test)


def test_feedback_models_health_metrics() -> None:
    async def test(site: Site) -> None:
        headers = {"authorization": f"Bearer {site.key}"}
        answer = await site.http.post("/v1/feedback", json={"kind": "thumbs_up"}, headers=headers)
        assert answer.json() == {"events": 1}
        assert (await site.http.post("/v1/feedback", json={"kind": "x"})).status_code == 401
        assert (await site.http.post("/v1/feedback", json=[1], headers=headers)).status_code == 400
        assert (await site.http.get("/v1/models")).json()["data"][0]["id"] == "woodshed"
        assert await site.admin.health() == {"status": "ok", "model": "woodshed", "version": 3}
        site.engine.told = {"engines_serving": 0}
        assert (await site.admin.health())["status"] == "no engine serves"
        site.engine.told = {"stopped": "out of memory"}
        answer = await site.http.get("/health")
        assert answer.status_code == 503 and answer.json()["reason"] == "out of memory"
        await site.chat()
        await site.chat([{"role": "user", "content": "another"}])
        metrics = (await site.http.get("/metrics")).text
        assert "woodshed_gateway_turns_total 2\n" in metrics
        assert "woodshed_gateway_prefix_breaks_total 1\n" in metrics
        assert 'woodshed_gateway_responses_total{status="200"} 2\n' in metrics
        assert "woodshed_gateway_open_trajectories 1\n" in metrics and "woodshed_engine_running 0" in metrics
        assert (await site.admin.list())[0]["id"] == "t"
        finished = await site.admin.finish("t")
        assert finished.feedback[0]["kind"] == "thumbs_up"
        with pytest.raises(GatewayError, match="no_weight_chain"):
            await site.admin.follow(4)

    run(ScriptedEngine(replies("a<end>", "b<end>")), test)
