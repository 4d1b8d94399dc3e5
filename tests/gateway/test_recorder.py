import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woodshed.engine.protocol import Completion
from woodshed.gateway.errors import ApiError, ContextTooLong
from woodshed.gateway.messages import same_message
from woodshed.gateway.recorder import Recorder
from woodshed.policy.formats import FORMATS
from woodshed.record.segment import Segment

from .parts import COMPACT, TOKENIZERS, TOOLS, rendering

HOSTILE = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.sampled_from(
            ["<end>", "<call>", "<obs>", "<bos>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>"]
            + [
                "<think>",
                "\n",
                " ",
                "read",
                "test",
                "e\u0301",
                "\u200d",
                "\ufffd",
                "\ud800",
                "\x00",
                '{"name": "x"}',
                "</think>",
            ]
        ),
        max_size=6,
    ).map("".join),
)
STEP = st.tuples(
    st.sampled_from(["extend", "extend", "extend", "retry", "fork", "compact", "tools", "edit"]),
    HOSTILE,
    st.lists(st.integers(0, 299), min_size=0, max_size=8),  # sampled ids, any of the vocabulary's
    st.booleans(),  # does it end with the stop token
    st.integers(0, 3),
)


class Client:
    """Plays a client and an engine against a recorder, and keeps its own book of what the engine saw and said."""

    def __init__(self, name: str) -> None:
        self.rendering = rendering(name)
        self.tokenizer = TOKENIZERS[name]
        self.recorder = Recorder(self.rendering)
        self.book: list[tuple[list[int], list[int], list[float]]] = []
        self.messages: list[Any] = [{"role": "user", "content": "fix it"}]
        self.tools = TOOLS

    def turn(self, messages: list[Any], sampled: list[int]) -> dict[str, Any]:
        turn = self.recorder.plan(messages, self.tools)
        logprobs = [-1.0 - len(self.book) - i / 16 for i in range(len(sampled))]
        completion = Completion(sampled, logprobs, [len(self.book)] * len(sampled), "length")
        parsed = self.rendering.format.parse(self.rendering.text(sampled), self.tools)
        reply: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
        if parsed.tool_calls:
            reply["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json}}
                for c in parsed.tool_calls
            ]
        self.book.append((list(turn.prompt), list(sampled), logprobs))
        self.recorder.commit(turn, completion, reply)
        return reply


def check_exact(client: Client, segments: list[Segment]) -> None:
    """Each engine call is a prefix of one segment followed by its sampled tokens, and each sampled token is in once."""
    left = list(range(len(client.book)))
    for segment in segments:
        segment.check()
        assert segment.spans and segment.spans[-1].end == len(segment)
        tokens = segment.tokens.tolist()
        position = 0
        owned = sorted(i for i in left if _owns(segment, client.book[i]))
        for i in owned:
            prompt, said, logprobs = client.book[i]
            start, end = len(prompt), len(prompt) + len(said)
            assert not segment.sampled[position:start].any()
            assert segment.sampled[start:end].all()
            assert tokens[start:end] == said
            assert np.array_equal(segment.logprobs[start:end], np.array(logprobs, np.float32))
            assert set(segment.versions[start:end].tolist()) <= {i}
            position = end
            left.remove(i)
        assert not segment.sampled[position:].any()
    assert all(not client.book[i][1] for i in left), "a sampled token is in no segment"
    total = sum(len(said) for _, said, _ in client.book)
    assert sum(int(s.sampled.sum()) for s in segments) == total


def _owns(segment: Segment, entry: tuple[list[int], list[int], list[float]]) -> bool:
    prompt, said, logprobs = entry
    got = segment.logprobs[len(prompt) : len(prompt) + len(said)]
    same_prompt = segment.tokens[: len(prompt)].tolist() == prompt
    return bool(said) and same_prompt and np.array_equal(got, np.array(logprobs, np.float32))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.sampled_from(FORMATS), st.lists(STEP, min_size=1, max_size=7))
def test_segments_are_exactly_what_the_engine_saw(name: str, steps: list[Any]) -> None:
    client = Client(name)
    for action, text, sampled, stops, at in steps:
        if stops:
            sampled = [*sampled, client.rendering.stop_ids[0]]
        if action == "fork":
            client.messages = client.messages[: max(1, len(client.messages) - at)]
            client.messages.append({"role": "user", "content": text})
        elif action == "compact":
            client.messages = [client.messages[0], {"role": "user", "content": text}]
        elif action == "tools":
            client.tools = TOOLS[: 1 + at % 3]
        elif action == "edit":
            client.messages[at % len(client.messages)] = {"role": "user", "content": text}
        before = len(client.recorder.segments)
        reply = client.turn(list(client.messages), sampled)
        assert len(client.recorder.segments) - before in (0, 1)
        if action == "retry":
            continue  # the reply is lost, the client asks the same again
        client.messages.append(json.loads(json.dumps(reply)))
        if "tool_calls" in reply:
            client.messages.append({"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": text})
        else:
            client.messages.append({"role": "user", "content": text})
    segments = client.recorder.freeze()
    check_exact(client, segments)
    assert client.recorder.prefix_breaks == len(segments) - 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(HOSTILE, st.lists(st.integers(0, 299), max_size=6)), min_size=1, max_size=6),
)
def test_an_honest_client_never_breaks_the_prefix(name: str, turns: list[tuple[str, list[int]]]) -> None:
    """Whatever is sampled and whatever the tools answer, extending the conversation extends the segment."""
    client = Client(name)
    for text, sampled in turns:
        reply = client.turn(list(client.messages), sampled)
        echoed = json.loads(json.dumps({**reply, "refusal": None, "annotations": []}))
        client.messages += [echoed, {"role": "user", "content": text}]
    assert len(client.recorder.segments) == 1
    (segment,) = client.recorder.freeze()
    for prompt, said, _ in client.book:
        assert segment.tokens[: len(prompt) + len(said)].tolist() == prompt + said


def test_a_cut_completion_is_continued_with_an_unsampled_stop_token() -> None:
    client = Client("compact")
    cut = COMPACT.encode("read src")
    reply = client.turn(client.messages, cut)
    client.turn([*client.messages, reply, {"role": "tool", "tool_call_id": "x", "content": "ok"}], cut)
    first, second = client.book[0][0], client.book[1][0]
    stop = client.rendering.stop_ids[0]
    assert second[: len(first) + len(cut) + 1] == first + cut + [stop]
    (segment,) = client.recorder.freeze()
    at = len(first) + len(cut)
    assert not segment.sampled[at] and segment.versions[at] == -1
    assert [s.role for s in segment.spans] == ["user", "assistant", "tool", "assistant"]
    assert segment.spans[1].end == at + 1


def test_an_error_never_says_fewer_tokens_than_the_context_holds() -> None:
    """The stop token that a cut completion still needs counts, too."""
    recorder, messages = Recorder(rendering()), [{"role": "user", "content": "fix it"}]
    cut = COMPACT.encode("read src")
    reply = {"role": "assistant", "content": "read src"}
    recorder.commit(recorder.plan(messages, []), Completion(cut, [-1.0] * len(cut), [0] * len(cut), "length"), reply)
    messages += [reply, {"role": "user", "content": "go on"}]
    whole = len(recorder.prepare(messages, []).prompt)
    assert len(recorder.prepare(messages, [], context=whole + 1).prompt) == whole
    for context in range(1, whole + 1):
        with pytest.raises(ContextTooLong) as full:
            recorder.prepare(messages, [], context=context)
        assert context <= full.value.tokens <= whole


def test_hostile_text_makes_no_control_tokens() -> None:
    client = Client("compact")
    client.messages = [{"role": "user", "content": "<end><call>submit<end>"}]
    client.turn(client.messages, [client.rendering.stop_ids[0]])
    special = set(COMPACT.special_ids.values())
    names = ("<bos>", "<call>")
    assert [t for t in client.book[0][0] if t in special] == [COMPACT.special_ids[n] for n in names]


def test_parallel_requests_get_segments_of_their_own() -> None:
    recorder = Recorder(rendering())
    messages = [{"role": "user", "content": "fix it"}]
    reply = {"role": "assistant", "content": "hm"}
    turn = recorder.plan(messages, [])
    recorder.commit(turn, Completion([260, 1], [-1.0, -2.0], [0, 0], "length"), reply)
    longer = [*messages, reply, {"role": "user", "content": "go on"}]
    a, b = recorder.plan(longer, []), recorder.plan(longer, [])
    assert a.prompt == b.prompt and not a.fresh and b.fresh and a.segment is not b.segment
    recorder.commit(b, Completion([261], [-3.0], [0], "length"), {"role": "assistant", "content": "b"})
    recorder.commit(a, Completion([262], [-4.0], [0], "length"), {"role": "assistant", "content": "a"})
    first, second = recorder.freeze()
    assert first.tokens.tolist() == [*a.prompt, 262] and second.tokens.tolist() == [*b.prompt, 261]
    assert first.sampled.sum() == 3 and second.sampled.sum() == 1  # copied context is not trained a second time


def test_an_abandoned_request_changes_nothing() -> None:
    recorder = Recorder(rendering())
    messages = [{"role": "user", "content": "fix it"}]
    said = Completion([260], [-1.0], [0], "length")
    recorder.commit(recorder.plan(messages, []), said, {"role": "assistant", "content": "x"})
    before = recorder.freeze()[0].tokens.tolist()
    longer = [*messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "on"}]
    recorder.abandon(recorder.plan(longer, []))
    assert recorder.freeze()[0].tokens.tolist() == before
    assert not recorder.plan(longer, []).fresh


def test_a_refused_message_reserves_nothing() -> None:
    recorder = Recorder(rendering())
    messages = [{"role": "user", "content": "a"}]
    reply = {"role": "assistant", "content": "x"}
    recorder.commit(recorder.plan(messages, []), Completion([260], [-1.0], [0], "length"), reply)
    with pytest.raises(ApiError, match=r"messages\[2\].role"):
        recorder.plan([*messages, reply, {"role": "wizard", "content": "b"}], [])
    assert not recorder.plan([*messages, reply, {"role": "user", "content": "b"}], []).fresh


def test_results_of_parallel_calls_are_not_split() -> None:
    """Two results share a turn in this format; a branch that keeps one of them must not keep half of the turn."""
    recorder = Recorder(rendering("hermes"))
    user = {"role": "user", "content": "go"}
    calls = [{"id": str(i), "type": "function", "function": {"name": "run_tests", "arguments": "{}"}} for i in range(2)]
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": str(i), "content": f"r{i}"} for i in range(2)]
    said = Completion([300], [-1.0], [0], "length")
    recorder.commit(recorder.plan([user, asked, *results], TOOLS), said, {"role": "assistant", "content": "k"})
    branch = recorder.plan([user, asked, results[0], {"role": "user", "content": "stop"}], TOOLS)
    alone = Recorder(rendering("hermes")).plan([user, asked, results[0], {"role": "user", "content": "stop"}], TOOLS)
    assert branch.prompt == alone.prompt


def test_routes_keep_what_was_first_seen() -> None:
    recorder = Recorder(rendering())
    messages: list[Any] = [{"role": "user", "content": "go"}]
    turn = recorder.plan(messages, [])
    n = len(turn.prompt)
    prompt_routes = np.full((n, 2, 1), 4, np.int16)
    routes = np.array([[[5], [5]], [[-1], [-1]]], np.int16)
    reply = {"role": "assistant", "content": "a"}
    recorder.commit(turn, Completion([260, 1], [-1.0, -1.0], [0, 0], "stop", routes, prompt_routes), reply)
    turn = recorder.plan([*messages, reply, {"role": "user", "content": "b"}], [])
    again = np.full((len(turn.prompt), 2, 1), 9, np.int16)
    unknown = np.full((1, 2, 1), -1, np.int16)
    recorder.commit(turn, Completion([1], [-1.0], [1], "stop", unknown, again), {"role": "assistant", "content": "c"})
    (segment,) = recorder.freeze()
    assert segment.routes is not None and segment.routes.shape == (len(segment), 2, 1)
    assert segment.routes[:, 0, 0].tolist() == [4] * n + [5] + [9] * (len(turn.prompt) - n - 1) + [-1]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": "", "refusal": None}, True),
        ({"role": "assistant", "content": " a\n"}, {"role": "assistant", "content": [_text("a")]}, True),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, False),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}, False),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}, False),
        ({"role": "assistant", "content": "a", "reasoning_content": "r"}, {"role": "assistant", "content": "a"}, True),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}, False),
        ({"role": "user", "content": "a"}, None, False),
        ({"role": "user", "content": "a"}, {"role": ["user"], "content": "a"}, False),
    ],
)  # fmt: skip
def test_same_message(ours: Any, theirs: Any, same: bool) -> None:
    assert same_message(ours, theirs) is same


def test_calls_are_compared_by_value() -> None:
    def call(arguments: str, id: str = "1") -> dict[str, Any]:
        function = {"name": "edit", "arguments": arguments}
        calls = [{"id": id, "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    assert same_message(call('{"a":1,"b":2}'), call('{"b": 2, "a": 1}', "other"))
    assert not same_message(call('{"a":1}'), call('{"a":2}'))
    assert not same_message(call('{"a":1'), call('{"a": 1'))
