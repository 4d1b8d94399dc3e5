"""The bytes between gateway and engine: whole messages come back as they were, everything else is refused."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.remote import wire
from woodshed.engine.routing.partial import Partial

FEW = settings(max_examples=30)
i32 = st.integers(-(2**31), 2**31 - 1)
f32 = st.floats(width=32, allow_nan=False)
samplings = st.builds(
    Sampling, max_tokens=st.integers(1, 10**6), temperature=st.floats(0, 10), top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 1000), min_p=st.floats(0, 1), stop_ids=st.lists(i32).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1), drawn=st.integers(0, 10**6),
    logit_bias=st.dictionaries(st.integers(0, 10**6), f32),
)  # fmt: skip
sampled = st.lists(st.tuples(i32, f32, i32), min_size=1, max_size=20)


def routes(count: int) -> st.SearchStrategy:
    return st.none() | st.just(np.arange(count * 6, dtype=np.int16).reshape(count, 3, 2))


@FEW
@given(st.lists(i32), samplings, st.none() | st.text(), st.booleans(), st.integers(0, 10**9), st.text())
def test_requests(tokens, sampling, session, live, least, name):
    data = wire.encode_ask(tokens, sampling, session, live=live, least=least, name=name)
    assert wire.decode_ask(data) == wire.Ask(tokens, sampling, session, live, least, name)


@FEW
@given(sampled, st.data())
def test_replies_in_any_pieces(tokens, data):
    columns = tuple(map(list, zip(*tokens)))
    done = Completion(
        *columns, "stop", data.draw(routes(len(tokens))), data.draw(routes(data.draw(st.integers(0, 4)))), 7
    )
    sent = wire.encode_tokens(tokens) + wire.frame(wire.ALIVE) + wire.encode_end(done)
    frames, got = wire.Frames(), []
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        got += frames.feed(sent[:cut])
        sent = sent[cut:]
    assert [kind for kind, _ in got] == [wire.TOKENS, wire.ALIVE, wire.END]
    read = wire.decode_tokens(got[0][1])
    assert read == columns
    back = wire.decode_end(got[2][1], read)
    for name in ("tokens", "logprobs", "versions", "stop_reason", "cached_tokens"):
        assert getattr(back, name) == getattr(done, name)
    for name in ("routes", "prompt_routes"):
        ours, theirs = getattr(done, name), getattr(back, name)
        assert theirs is None if ours is None else np.array_equal(ours, theirs) and theirs.dtype == np.int16
    with pytest.raises(ValueError, match="tokens arrived"):
        wire.decode_end(got[2][1], ([], [], []))


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    for read in (wire.decode_ask, wire.Frames().feed, wire.decode_tokens, lambda d: wire.decode_end(d, ([], [], []))):
        try:
            read(data)
        except ValueError:
            pass


@FEW
@given(st.lists(i32, max_size=5), samplings, st.data())
def test_damaged_messages_are_refused(tokens, sampling, data):
    whole = wire.encode_ask(tokens, sampling, "s", live=True, least=0, name="n")
    at = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:at], whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]):
        try:
            wire.decode_ask(damaged)
        except ValueError:
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head: head["sampling"].update(topp=1), "unknown sampling field 'topp'"),
        (lambda head: head["sampling"].update(top_k="many"), "top_k"),
        (lambda head: head.update(live=1), "live true or false"),
        (lambda head: head.update(least=True), "least an integer"),
        (lambda head: head.update(name=7), "name must be a string"),
        (lambda head: head.update(more=1), "nothing else"),
        (lambda head: head.pop("session"), "needs sampling, session"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(change, message):
    whole = wire.encode_ask([1], Sampling(), None, live=True, least=0, name="n")
    length = int.from_bytes(whole[:4], "little")
    head = json.loads(whole[4 : 4 + length])
    change(head)
    text = json.dumps(head).encode()
    with pytest.raises(ValueError, match=message):
        wire.decode_ask(len(text).to_bytes(4, "little") + text + whole[4 + length :])


def test_tokens_that_are_no_int32_are_refused():
    with pytest.raises(ValueError, match="tokens"):
        wire.encode_ask([1 << 40], Sampling(), None, live=True, least=0, name="n")


@FEW
@given(sampled, st.integers(0, 30), st.lists(st.integers(0, 20), max_size=4), st.integers(0, 40))
def test_a_completion_in_pieces_is_the_completion(tokens, prompt, cuts, held):
    """Whatever engines sampled its pieces: limits, seed, routes and what was told add up to one request."""
    n = len(tokens)
    asked = Sampling(max_tokens=n, seed=1, drawn=2)
    told = []
    partial = Partial(list(range(prompt)), asked, lambda *token: told.append(token))
    ids = np.arange((prompt + n) * 2, dtype=np.int16).reshape(-1, 1, 2)
    at = 0
    for at, end in pairwise([0, *sorted(min(cut, n - 1) for cut in cuts), n]):
        listener = partial.listener()
        assert partial.prompt == list(range(prompt)) + [token for token, _, _ in tokens[:at]]
        assert (partial.sampling.max_tokens, partial.sampling.drawn) == (n - at, 2 + at)
        for token in tokens[at:end]:
            listener(*token)
        listener.stop()
        listener(1, math.nan, 1)  # said too late
        assert partial.ended is None or end == n
    columns = tuple(map(list, zip(*tokens[at:])))
    held = min(held, prompt + at)
    rest = Completion(*columns, "length", ids[prompt + at :], ids[held : prompt + at], held)
    done = partial.whole(rest)
    assert (done.tokens, done.logprobs, done.versions) == tuple(map(list, zip(*tokens)))
    assert told == tokens and partial.ended == "length" and done.cached_tokens <= max(prompt, held)
    kept = done.routes[:at]
    known = kept[:, 0, 0] >= 0
    assert len(done.routes) == n and np.array_equal(kept[known], ids[prompt : prompt + at][known])
    assert known.sum() == min(at, prompt + at - held) and np.array_equal(done.routes[at:], ids[prompt + at :])
    assert np.array_equal(done.prompt_routes, ids[min(held, prompt) : prompt])
