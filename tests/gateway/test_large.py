"""Requests that are large: refused before they are encoded, encoded beside the event loop, recorded as ever."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.gateway import background
from woodshed.gateway.background import Background
from woodshed.gateway.key_limits import KeyLimits
from woodshed.policy.tokenizer import Tokenizer, TooManyTokens

from .parts import COMPACT, HERMES, ScriptedEngine, replies, tool
from .site import USER, Site, run

LETTERS = "a" * 3_000_000


def no_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts must not get as far as the tokenizer."""

    def refuse(self: Tokenizer, text: str, **_: Any) -> None:
        raise AssertionError(f"{len(text)} characters were encoded")

    monkeypatch.setattr(Tokenizer, "_encode_long", refuse)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=400) | st.text(st.sampled_from("a \n<call>é"), max_size=2000))
def test_the_bound_of_tokens_is_one(text: str) -> None:
    for tokenizer in (COMPACT, HERMES):
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_the_bound_is_tight_where_a_token_is_as_long_as_can_be() -> None:
    longest = max((HERMES.token_bytes(i) for i in range(len(HERMES)) if i not in HERMES.special_ids.values()), key=len)
    text = longest.decode() * 100
    assert HERMES.least_tokens(text) * HERMES.longest >= len(text) * 0.99


def test_a_normalizer_that_deletes_leaves_no_bound() -> None:
    data = json.loads(HERMES.to_json())
    import tokenizers

    def least(normalizer: Any) -> int:
        changed = tokenizers.Tokenizer.from_str(json.dumps({**data, "normalizer": normalizer}))
        return Tokenizer(changed).least_tokens("e\u0301" * 4000)

    assert least({"type": "Strip", "strip_left": True, "strip_right": True}) == 0
    nfc = tokenizers.Tokenizer.from_str(json.dumps({**data, "normalizer": {"type": "NFC"}}))
    assert 0 < least({"type": "NFC"}) <= len(Tokenizer(nfc).encode("e\u0301" * 4000))


def test_long_texts_are_encoded_as_short_ones() -> None:
    for text in ("read src/main.py\n" * 500, "é\ud800" * 3000, "<end>" * 1000):
        plain = HERMES._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        assert HERMES.encode(text) == plain
    with pytest.raises(TooManyTokens) as caught:
        HERMES.encode_pieces([("read src/main.py\n" * 5000, False)], 10)
    assert caught.value.least > 10


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    chat, anthropic, responses = "/v1/chat/completions", "/v1/messages", "/v1/responses"
    called = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": json.dumps({"p": LETTERS})}}
    asked = {"role": "assistant", "tool_calls": [called]}
    result = [*USER, asked, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    user = [{"role": "user", "content": "a"}]
    return {
        "user": (chat, {"messages": [{"role": "user", "content": LETTERS}]}),
        "system": (chat, {"messages": [{"role": "system", "content": LETTERS}, *USER]}),
        "arguments": (chat, {"messages": result}),
        "tools": (chat, {"messages": USER, "tools": [tool("t", "t", ""), _described(LETTERS)]}),
        "parts": (anthropic, {"max_tokens": 5, "messages": [{"role": "user", "content": [_text(LETTERS)]}]}),
        "count": (anthropic + "/count_tokens", {"messages": [{"role": "user", "content": LETTERS}]}),
        "anthropic system": (anthropic, {"max_tokens": 5, "system": LETTERS, "messages": user}),
        "input": (responses, {"input": LETTERS}),
        "instructions": (responses, {"input": "a", "instructions": LETTERS}),
    }


def _described(text: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("name", list(bodies()))
def test_what_cannot_fit_is_refused_before_it_is_encoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_encoding(monkeypatch)
    path, body = bodies()[name]
    engine = ScriptedEngine(replies("ok<|im_end|>", tokenizer=HERMES))

    async def test(site: Site) -> None:
        answer = await site.post(path, body)
        assert answer.status_code == 400, answer.text[:300]
        words = "prompt is too long" if "/messages" in path else "maximum context length is 4096"
        assert words in answer.text
        assert (await site.post("/v1/chat/completions", {"messages": USER})).status_code == 200

    run(engine, test, format="hermes")
    assert len(engine.calls) == 1


def test_the_limit_of_a_key_refuses_as_early(monkeypatch: pytest.MonkeyPatch) -> None:
    no_encoding(monkeypatch)
    engine = ScriptedEngine(replies(), context=1 << 30)

    async def test(site: Site) -> None:
        key = await site.admin.open("bounded", limits=KeyLimits(context_tokens=100))
        answer = await site.chat([{"role": "user", "content": LETTERS}], key)
        assert answer.status_code == 400 and "maximum context length is 100" in answer.text

    run(engine, test)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"messages":' + b"[" * 1_000_000,
        b'{"metadata":[' + b"1," * 1_000_000 + b'1],"messages":[{"role":"user","content":"a"}]}',
        b'{"messages":[' + b'{"role":"user","content":""},' * 120_000 + b"{}]}",
        b" " * 1_000_000,
    ],
)
def test_floods_of_values_are_refused(body: bytes) -> None:
    async def test(site: Site) -> None:
        headers = {"authorization": f"Bearer {site.key}"}
        answer = await site.http.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["code"] in ("invalid_json", "invalid_value")
        assert (await site.chat()).status_code == 200

    run(ScriptedEngine(replies("ok<end>")), test)


def test_long_and_short_requests_of_a_key_are_recorded_in_one_segment() -> None:
    """What is encoded in a thread is what would have been encoded in the event loop."""
    texts = ["short", "read src/main.py\n" * 3000, "short again", "é <end> <call>" * 2000]

    def recorded() -> list[int]:
        engine = ScriptedEngine(replies(*["ok<end>"] * len(texts)), context=1 << 20)
        tokens: list[int] = []

        async def test(site: Site) -> None:
            messages: list[Any] = []
            for text in texts:
                messages.append({"role": "user", "content": text})
                answer = await site.chat(messages)
                messages.append(answer.json()["choices"][0]["message"])
            finished = await site.admin.finish("t", messages=True)
            (segment,) = finished.segments
            tokens.extend(segment.tokens.tolist())
            assert [message["role"] for message in finished.messages[0]] == ["user", "assistant"] * len(texts)

        run(engine, test)
        return tokens

    threaded = recorded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "AT_ONCE", 1 << 30)
        assert recorded() == threaded


def test_the_event_loop_goes_on_while_a_long_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding waits for another request to be answered, so it cannot be in the event loop."""
    answered = threading.Event()
    encode: Callable[..., Any] = Tokenizer._encode_long

    def slow(self: Tokenizer, text: str, **options: Any) -> Any:
        assert answered.wait(60)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "_encode_long", slow)

    async def test(site: Site) -> None:
        long = asyncio.create_task(site.chat([{"role": "user", "content": "read src/main.py\n" * 1000}]))
        other = await site.admin.open("other")
        assert (await site.chat(key=other)).status_code == 200
        assert (await site.http.get("/health")).status_code == 200
        assert not long.done()
        answered.set()
        assert (await long).status_code == 200

    run(ScriptedEngine(replies("ok<end>", "ok<end>"), context=1 << 20), test)


def test_a_request_that_is_given_up_while_it_is_encoded_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()
    encode: Callable[..., Any] = Tokenizer._encode_long

    def slow(self: Tokenizer, text: str, **options: Any) -> Any:
        began.set()
        assert go.wait(60)
        return encode(self, text, **options)

    async def test(site: Site) -> None:
        first = (await site.chat()).json()["choices"][0]["message"]
        longer = [*USER, first, {"role": "user", "content": "read src/main.py\n" * 1000}]
        monkeypatch.setattr(Tokenizer, "_encode_long", slow)
        left = asyncio.create_task(site.chat(longer))
        await asyncio.to_thread(began.wait, 60)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        again = asyncio.create_task(site.chat(longer))
        go.set()
        assert (await again).status_code == 200
        assert len((await site.admin.finish("t")).segments) == 1

    run(ScriptedEngine(replies("ok<end>", "ok<end>"), context=1 << 20), test)


def test_a_key_has_one_thread_however_often_it_leaves() -> None:
    running, most = 0, 0
    guard, go = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        assert go.wait(60)
        with guard:
            running -= 1

    async def test() -> None:
        some, lock = Background(), asyncio.Lock()
        for _ in range(5):
            left = asyncio.create_task(some.alone(lock, 100_000, work, lambda _: None))
            await asyncio.sleep(0.01)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        last = asyncio.create_task(some.alone(lock, 100_000, work, lambda _: None))
        go.set()
        await last

    asyncio.run(test())
    assert most == 1 and running == 0


def test_large_requests_at_once_do_not_take_more_than_a_key_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are planned before the first one takes hold of what is left."""
    planned = threading.Barrier(2)
    encode: Callable[..., Any] = Tokenizer._encode_long

    def together(self: Tokenizer, text: str, **options: Any) -> Any:
        planned.wait(60)
        return encode(self, text, **options)

    engine = ScriptedEngine(lambda _: COMPACT.encode("read " * 200), context=1 << 20)

    async def test(site: Site) -> None:
        engine.gate = asyncio.Event()
        key = await site.admin.open("bounded", limits=KeyLimits(sampled_tokens=30))
        other = await site.admin.open("other")
        monkeypatch.setattr(Tokenizer, "_encode_long", together)
        text = "read src/main.py\n" * 1000
        asked = [asyncio.create_task(site.chat([{"role": "user", "content": f"{i} {text}"}], key)) for i in range(2)]
        beside = [asyncio.create_task(site.chat([{"role": "user", "content": f"{i} {text}"}], other)) for i in range(2)]
        while len(engine.samplings) < 3:
            await asyncio.sleep(0.001)
        engine.gate.set()
        assert sorted([(await one).status_code for one in asked]) == [200, 429]
        assert [(await one).status_code for one in beside] == [200, 200]
        assert sum(int(s.sampled.sum()) for s in (await site.admin.finish("bounded")).segments) == 30

    run(engine, test)


def test_what_is_somewhat_too_long_is_counted() -> None:
    async def test(site: Site) -> None:
        words = {"messages": [{"role": "user", "content": "zq" * 3000}], "max_tokens": 5}
        assert (await site.post("/v1/messages", words)).status_code == 400
        counted = await site.post("/v1/messages/count_tokens", words)
        assert counted.status_code == 200 and 4096 < counted.json()["input_tokens"] < 7000
        words["messages"][0]["content"] *= 10
        refused = await site.post("/v1/messages/count_tokens", words)
        assert refused.status_code == 400 and "> 4096 maximum" in refused.text

    run(ScriptedEngine(replies()), test, format="hermes")
