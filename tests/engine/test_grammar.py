"""Which tokens a grammar allows, against trying all of them; and completions under a grammar in a running engine."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.engine.grammar import GrammarError, Grammars
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, EngineError, Sampling
from woodshed.engine.routing.partial import Partial
from woodshed.engine.settings import EngineSettings
from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead

from .grammars import brute_force, end_of, ids_of, json_lark, spans_of, texts, tiny_vocabulary
from .models import DENSE, clone_state, decoder, full_logprobs, prompt, run, slow

TOKENIZER = tiny_vocabulary()
END = end_of(TOKENIZER)
GRAMMARS = Grammars.of(TOKENIZER)

_names = st.text("abcde", min_size=1, max_size=3)
_leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.lists(st.one_of(_names, st.integers(-20, 20), st.none()), min_size=1, max_size=4, unique_by=repr).map(
        lambda chosen: {"enum": chosen}
    ),
)


def _arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lengths = st.tuples(st.integers(0, 1), st.integers(1, 2))
    return st.builds(lambda of, n: {"type": "array", "items": of, "minItems": n[0], "maxItems": n[1]}, items, lengths)


def _objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], flags: list[bool]) -> dict[str, Any]:
        required = [name for name, flag in zip(properties, flags) if flag]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.builds(
        build, st.dictionaries(_names, members, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3)
    )


schemas = st.one_of(_leaves, _arrays(_leaves), _objects(st.one_of(_leaves, _arrays(_leaves)))).filter(
    lambda schema: len(texts(schema)) <= 400
)

_bounded = st.one_of(
    st.just({"type": "integer", "minimum": -3, "maximum": 120}),
    st.just({"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99}),
    st.just({"type": "number", "exclusiveMinimum": 0, "maximum": 2}),
    st.builds(
        lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, st.integers(0, 3), st.integers(0, 4)
    ),
    st.just({"type": "string", "pattern": "^[a-c]{2,4}$"}),
    st.just({"type": "string", "format": "date"}),
    st.just({"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]}),
    st.just({"$ref": "#/$defs/pair"}),
    st.just({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]}),
    st.just({"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False, "minItems": 2}),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas of the keywords that clients send; their values are too many to list."""
    properties = draw(st.dictionaries(_names, _bounded, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    pair = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": {"pair": pair},
    }


CHOICE = {
    "type": "object",
    "properties": {"a": {"enum": ["ab", "aba", "b"]}, "b": {"type": "boolean"}, "c": {"enum": [10, 100, 7]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LANGUAGE = texts(CHOICE)
LONG = {"type": "array", "items": {"enum": ["ab", "abc", 10]}, "minItems": 3, "maxItems": 12}


def sampling(schema: dict[str, Any] = CHOICE, **fields: Any) -> Sampling:
    return Sampling(**{"max_tokens": 120, "stop_ids": (END,), "grammar": json_lark(schema), **fields})


def text(done: Completion) -> bytes:
    return b"".join(TOKENIZER.token_bytes(token) for token in done.tokens if token != END)


def engine_of(policy: Decoder, mtp: MtpHead | None = None, **fields: Any) -> LocalEngine:
    return LocalEngine(policy, settings=EngineSettings.model_validate(fields), mtp=mtp, grammars=GRAMMARS)


async def complete(policy: Decoder, samplings: list[Sampling], mtp: MtpHead | None = None, **fields: Any) -> Any:
    engine = engine_of(policy, mtp, **fields)
    try:
        asks = [engine.generate(prompt(9 + i, seed=i) * 2, s, session=f"s{i}.0") for i, s in enumerate(samplings)]
        return await asyncio.gather(*asks), engine.stats()
    finally:
        await engine.close()


@given(schema=schemas, seed=st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_the_allowed_tokens_are_those_that_some_text_of_the_schema_goes_on_with(schema: Any, seed: int) -> None:
    language, rng = texts(schema), random.Random(seed)
    matcher, said = GRAMMARS.start(json_lark(schema), [END]), b""
    while True:
        allowed = ids_of(matcher.allowed())
        assert allowed == brute_force(language, said, TOKENIZER, [END])
        token = rng.choice(sorted(allowed))
        if token == END:
            break
        matcher.advance([token])
        said += TOKENIZER.token_bytes(token)
    assert said in language


@given(schema=documents(), seed=st.integers(0, 1 << 30))
@settings(max_examples=80, deadline=None)
def test_whatever_a_schema_allows_is_valid_to_another_validator(schema: Any, seed: int) -> None:
    rng, said = random.Random(seed), b""
    matcher = GRAMMARS.start(json_lark(schema), [END])
    closing = {TOKENIZER.encode(c)[0] for c in '"}],'} | {END}
    for _ in range(400):
        allowed = sorted(ids_of(matcher.allowed()))
        likely = [token for token in allowed if token in closing]
        token = rng.choice(likely if likely and rng.random() < 0.3 else allowed)
        if token == END:
            jsonschema.validate(json.loads(said), schema)
            return
        matcher.advance([token])
        said += TOKENIZER.token_bytes(token)
    raise AssertionError(f"no end after {said!r}")


@given(schema=schemas, draft=st.lists(st.integers(0, 96), max_size=6), seed=st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_a_draft_is_cut_where_it_breaks_the_grammar_and_leaves_no_trace(
    schema: Any, draft: list[int], seed: int
) -> None:
    language, rng = texts(schema), random.Random(seed)
    matcher, said = GRAMMARS.start(json_lark(schema), [END]), b""
    if rng.random() < 0.7:  # a draft that begins well
        good = rng.choice(sorted(language)).decode()
        draft = [next(t for t in range(97) if TOKENIZER.token_bytes(t) == c.encode()) for c in good[:5]] + draft
    fitting = matcher.fitting(draft)
    expected = 0
    for token in draft:
        if token == END or token not in brute_force(language, said, TOKENIZER, []):
            break
        said += TOKENIZER.token_bytes(token)
        expected += 1
    assert fitting == expected
    before = ids_of(matcher.allowed())
    after = [ids_of(bits) for bits in matcher.allowed_after(draft[:fitting])]
    assert after[0] == before == ids_of(matcher.allowed())
    assert after == list(spans_of(language, [*draft[:fitting], END], TOKENIZER))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_completions_follow_the_grammar_with_log_probabilities_among_what_it_allows(temperature: float) -> None:
    policy = decoder()
    asks = [sampling(seed=seed, temperature=temperature) for seed in range(6)]
    done, _ = run(complete(policy, asks))
    reference = decoder()
    for i, one in enumerate(done):
        assert one.stop_reason == "stop" and text(one) in LANGUAGE
        start = prompt(9 + i, seed=i) * 2
        logprobs = full_logprobs(reference, start + one.tokens)[len(start) - 1 :]
        for at, allowed in enumerate(spans_of(LANGUAGE, one.tokens, TOKENIZER)):
            among = sorted(allowed)
            renormalised = logprobs[at, among].log_softmax(-1)
            chosen = float(renormalised[among.index(one.tokens[at])])
            if temperature:
                assert abs(chosen - one.logprobs[at]) < 1e-4
            else:
                assert chosen == float(renormalised.max()) and one.logprobs[at] == 0
    if temperature:
        assert len({text(one) for one in done}) > 1


def test_rows_with_and_without_a_grammar_do_not_disturb_each_other() -> None:
    free = [Sampling(max_tokens=30, seed=7), Sampling(max_tokens=30, seed=8, top_k=4)]
    mixed = [sampling(seed=1), free[0], sampling(LONG, seed=2), free[1], sampling(seed=3, top_p=0.8, temperature=0.7)]
    together, _ = run(complete(decoder(), mixed))
    for i, ask in enumerate(mixed):
        alone, _ = run(complete(decoder(), [Sampling(max_tokens=1)] * i + [ask]))
        assert alone[i].tokens == together[i].tokens and np.allclose(alone[i].logprobs, together[i].logprobs, atol=1e-4)
    assert any(b not in text(together[1]) for b in (b"{", b"["))


@pytest.mark.parametrize("speculate", ["mtp", "ngram"])
def test_guesses_change_no_token_under_a_grammar(speculate: str) -> None:
    asks = [
        sampling(LONG, seed=1),
        sampling(LONG, seed=2, temperature=0.7, top_p=0.9),
        sampling(LONG, temperature=0.0),
        sampling(seed=4),
        Sampling(max_tokens=40, seed=5),
    ]
    policy, head = decoder(sharpness=6.0), MtpHead(DENSE, seed=3)
    plain, counts = run(complete(policy, asks, head, speculate="off"))
    assert not counts["drafted_tokens"]
    guessed, counts = run(complete(policy, asks, head, speculate=speculate, speculate_running=8))
    assert counts["drafted_tokens"] > 0
    for a, b in zip(plain, guessed, strict=True):
        assert (
            a.tokens == b.tokens and a.stop_reason == b.stop_reason and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
        )
    assert counts["accepted_tokens"] > 0 if speculate == "ngram" else True


def test_the_distribution_under_a_grammar_is_exact_where_guesses_are_right_and_wrong() -> None:
    """Chi-square of whole completions against a full forward over all spellings of all texts; the bound is about five
    standard deviations above the mean."""
    tokenizer = tiny_vocabulary(8, ("ab", "ba"), "abc")
    end = end_of(tokenizer)
    language = {b"abab", b"aba", b"cab", b"cc"}
    grammar = "start: " + " | ".join(f'"{word.decode()}"' for word in sorted(language)) + "\n"
    policy = decoder(replace(DENSE, vocab_size=8), sharpness=8.0)
    start = tokenizer.encode("cababaccababaccabcc" * 2)
    exact: dict[tuple[int, ...], float] = {}

    def walk(said: tuple[int, ...], logprob: float) -> None:
        so_far = b"".join(tokenizer.token_bytes(token) for token in said)
        among = sorted(brute_force(language, so_far, tokenizer, [end]))
        logprobs = full_logprobs(policy, [*start, *said])[-1, among].log_softmax(-1)
        for token, more in zip(among, logprobs.tolist()):
            if token == end:
                exact[(*said, token)] = logprob + more
            else:
                walk((*said, token), logprob + more)

    walk((), 0.0)
    draws = 2000

    async def main() -> tuple[list[Completion], dict[str, Any]]:
        chosen = EngineSettings(speculate="ngram", speculate_running=64, max_running=64)
        engine = LocalEngine(policy, settings=chosen, grammars=Grammars.of(tokenizer))
        try:
            asks = [Sampling(max_tokens=9, seed=seed, stop_ids=(end,), grammar=grammar) for seed in range(draws)]
            return await asyncio.gather(*(engine.generate(start, ask) for ask in asks)), engine.stats()
        finally:
            await engine.close()

    done, counts = run(main())
    assert counts["drafted_tokens"] > draws / 4 and 0 < counts["accepted_tokens"] < counts["drafted_tokens"]
    names = list(exact)
    expected = np.exp([exact[name] for name in names]) * draws
    assert abs(expected.sum() - draws) < 1e-2 * draws
    seen = np.zeros(len(names))
    for one in done:
        seen[names.index(tuple(one.tokens))] += 1
    rare = expected < 5
    seen, expected = (np.append(of[~rare], of[rare].sum() + 1e-9) for of in (seen, expected))
    square = float(((seen - expected) ** 2 / expected).sum())
    assert len(seen) > 5 and square < len(seen) - 1 + 5 * (2 * (len(seen) - 1)) ** 0.5


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_swap_of_weights_leaves_a_completion_in_its_grammar(kv: Any) -> None:
    async def main() -> None:
        engine = engine_of(slow(decoder()), native="off")
        heard: list[int] = []
        task = asyncio.create_task(
            engine.generate(prompt(9), sampling(LONG, seed=1), on_token=lambda t, *_: heard.append(t))
        )
        while len(heard) < 3:
            await asyncio.sleep(0.001)
        await engine.update_weights(1, clone_state(decoder(seed=5)), kv=kv)
        done = await task
        await engine.close()
        assert set(done.versions) == {0, 1} and done.stop_reason == "stop"
        replay = GRAMMARS.start(json_lark(LONG), [END])
        replay.advance(done.tokens[:-1])
        assert END in ids_of(replay.allowed())

    run(main())


def test_a_completion_that_is_cut_is_the_beginning_of_the_whole_and_its_session_goes_on() -> None:
    async def main() -> None:
        engine = engine_of(decoder())
        start = prompt(12)
        whole = await engine.generate(start, sampling(LONG, seed=3), session="a.0")
        cut = await engine.generate(start, sampling(LONG, seed=3, max_tokens=5), session="b.0")
        assert cut.stop_reason == "length" and cut.tokens == whole.tokens[:5]
        # the rest as another engine would sample it, see Partial
        partial = Partial(start, sampling(LONG, seed=3), None)
        for token, logprob, version in zip(cut.tokens, cut.logprobs, cut.versions):
            partial.take(token, logprob, version)
        rest = await engine.generate(partial.prompt, partial.sampling, session="b.0")
        assert cut.tokens + rest.tokens == whole.tokens and rest.cached_tokens >= len(start)
        assert np.allclose(cut.logprobs + rest.logprobs, whole.logprobs, atol=1e-4)
        enough = await engine.generate(start, sampling(LONG, seed=3), on_token=lambda *_: True)
        assert enough.stop_reason == "cancelled" and enough.tokens == whole.tokens[: len(enough.tokens)]
        await engine.close()

    run(main())


def test_a_cancelled_request_ends_and_the_next_is_served() -> None:
    async def main() -> None:
        engine = engine_of(slow(decoder()), native="off")
        heard: list[int] = []
        task = asyncio.create_task(
            engine.generate(prompt(9), sampling(LONG, seed=1), session="a.0", on_token=lambda t, *_: heard.append(t))
        )
        while not heard:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        done = await engine.generate(prompt(9), sampling(seed=1), session="a.0")
        assert text(done) in LANGUAGE
        await engine.close()

    run(main())


def test_what_cannot_be_followed_is_refused_or_fails_alone() -> None:
    async def main() -> None:
        engine = engine_of(decoder())
        with pytest.raises(GrammarError, match="uniqueItems"):
            await engine.generate(prompt(5), sampling({"type": "array", "uniqueItems": True}))
        with pytest.raises(ValueError, match="stop_ids"):
            await engine.generate(prompt(5), sampling(stop_ids=()))
        with pytest.raises(ValueError, match="1048576"):
            await engine.generate(prompt(5), sampling(grammar="x" * ((1 << 20) + 1)))
        # this vocabulary has no way to write an A
        broken, fine = await asyncio.gather(
            engine.generate(prompt(5), sampling(grammar='start: "aA"\n')),
            engine.generate(prompt(6), sampling(seed=2)),
            return_exceptions=True,
        )
        assert isinstance(broken, EngineError) and "no further token" in str(broken)
        assert isinstance(fine, Completion) and text(fine) in LANGUAGE
        await engine.close()
        bare = LocalEngine(decoder())
        assert bare.grammars_refused() and engine.grammars_refused() is None
        with pytest.raises(ValueError, match="tokenizer"):
            await bare.generate(prompt(5), sampling())
        await bare.close()

    run(main())


def test_a_grammar_that_exceeds_a_limit_of_its_library_within_a_draft_fails_alone() -> None:
    kinds = range(2100)  # after "aba" the parser has more items than its library allows
    rules = (f'k{i}: "{"abcd"[i % 4]}{i}" k? "x"' for i in kinds)
    large = "\n".join(['start: "ab" ("a" k | "bb")', "k: " + " | ".join(f"k{i}" for i in kinds), *rules, ""])
    a, b = (TOKENIZER.encode(c)[0] for c in "ab")

    matcher = GRAMMARS.start(large, [END])
    assert matcher.fitting([a, b, b, b]) == 4
    assert [ids_of(bits) & {a, b} for bits in matcher.allowed_after([a, b, a])[1:]] == [{b}, {a, b}, set()]
    assert ids_of(matcher.allowed()) >= {a}
    matcher.advance([a, b])

    async def main() -> None:
        engine = engine_of(decoder(), speculate="ngram", speculate_running=8, draft_tokens=8)
        broken, fine = await asyncio.gather(
            engine.generate([a, b, a, b, a, a, b, b] * 6, sampling(grammar=large, logit_bias={a: 50.0})),
            engine.generate(prompt(6), sampling(seed=2)),
            return_exceptions=True,
        )
        assert engine.stats()["drafted_tokens"]
        assert isinstance(broken, EngineError) and "grammar" in str(broken)
        assert isinstance(fine, Completion) and text(fine) in LANGUAGE
        await engine.close()

    run(main())


def test_stop_tokens_are_allowed_only_where_the_grammar_is_fulfilled_and_no_id_without_bytes_is() -> None:
    both = Grammars(TOKENIZER).start('start: "a" ("b" "c"?)?\n', [END, 96])
    a, b = (TOKENIZER.encode(c)[0] for c in "ab")
    assert ids_of(both.allowed()) == {t for t in range(97) if TOKENIZER.token_bytes(t) in (b"a", b"ab")}
    both.advance([a])
    assert {END, 96} < ids_of(both.allowed())
    both.advance([b])
    assert {END, 96} < ids_of(both.allowed())
    assert torch.tensor(sorted(ids_of(both.allowed()))).max() < 97
    with pytest.raises(GrammarError):
        both.advance([a])
