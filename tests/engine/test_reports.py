"""Raw log-probabilities and top alternatives, compared with one full forward pass without a cache."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.vllm.standin import standing_in
from woodshed.engine import forward
from woodshed.engine.protocol import Completion, EngineError, Sampling, SamplingRefused, TokenReport
from woodshed.engine.remote import wire
from woodshed.engine.vllm.client import VllmEngine

from .models import DENSE, decoder, full_logprobs, prompt, run, running
from .served import KEY, KINDS, routed, serving
from .test_router import interrupt

RAW = Sampling(max_tokens=24, seed=3, temperature=0.6, top_k=3, logit_bias={5: 2.0}, raw_logprobs=True, top_logprobs=4)


def check_raw(start: list[int], done: Completion, top: int, *, sharpness: float = 25.0) -> None:
    """The reports are those of the policy itself."""
    reference = full_logprobs(decoder(sharpness=sharpness), start + done.tokens)
    assert done.reports is not None and len(done.reports) == len(done.tokens)
    for i, (token, report) in enumerate(zip(done.tokens, done.reports)):
        row = reference[len(start) - 1 + i]
        assert report.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [value for _, value in report.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-3)
        assert [value for _, value in report.top] == pytest.approx([float(row[t]) for t, _ in report.top], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_raw_reports_are_of_the_policy_and_the_record_stays_what_it_is(kind):
    async def main():
        async with KINDS[kind](decoder()) as engine:
            plain = await engine.generate(prompt(12), replace(RAW, raw_logprobs=False, top_logprobs=0))
            done = await engine.generate(prompt(12), RAW)
            assert [(report.logprob, report.top) for report in plain.reports] == [(p, ()) for p in plain.logprobs]
            assert (done.tokens, done.logprobs) == (plain.tokens, plain.logprobs)
            check_raw(prompt(12), done, 4)
            greedy = await engine.generate(prompt(12), replace(RAW, temperature=0.0))
            check_raw(prompt(12), greedy, 4)
            assert set(greedy.logprobs) == {0.0} and greedy.reports[0].logprob < 0

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_reports_are_of_what_is_drawn_from(kind):
    async def main():
        async with KINDS[kind](decoder()) as engine:
            done = await engine.generate(prompt(12), replace(RAW, raw_logprobs=False))
            assert [report.logprob for report in done.reports] == pytest.approx(done.logprobs, abs=1e-6)
            for token, report in zip(done.tokens, done.reports):
                assert len(report.top) == 3 and token in dict(report.top), "top_k leaves three"
                assert sum(math.exp(value) for _, value in report.top) == pytest.approx(1, abs=1e-5)
            greedy = await engine.generate(prompt(12), replace(RAW, raw_logprobs=False, temperature=0.0))
            assert greedy.reports == [TokenReport(0.0, ((token, 0.0),)) for token in greedy.tokens]

    run(main())


def test_guesses_change_no_report():
    async def main(speculate: str):
        async with running(decoder(sharpness=80.0), speculate=speculate, speculate_running=8) as engine:
            asks = [replace(RAW, seed=i, max_tokens=40) for i in range(3)]
            done = await asyncio.gather(*(engine.generate(prompt(9, seed=i) * 2, s) for i, s in enumerate(asks)))
            return done, engine.stats()["accepted_tokens"]

    plain, _ = run(main("off"))
    guessed, accepted = run(main("ngram"))
    assert accepted > 0
    for i, (a, b) in enumerate(zip(plain, guessed)):
        assert a.tokens == b.tokens
        check_raw(prompt(9, seed=i) * 2, b, 4, sharpness=80.0)


def test_nothing_is_computed_for_those_who_do_not_ask(monkeypatch):
    calls: list[int] = []
    real = forward.token_reports
    monkeypatch.setattr(forward, "token_reports", lambda *given: calls.append(1) or real(*given))

    async def main():
        async with running(decoder()) as engine:
            await engine.generate(prompt(12), Sampling(max_tokens=5))
            assert not calls
            await engine.generate(prompt(12), Sampling(max_tokens=5, top_logprobs=1))
            assert calls

    run(main())


def test_reports_survive_the_engine_that_made_them():
    async def main():
        async with serving() as a, serving() as b, routed(a, b) as router:
            ask = replace(RAW, max_tokens=120)
            whole = await router.generate(prompt(12), ask)
            done, _, _ = await interrupt(router, (a, b), ask)
            assert done.tokens == whole.tokens and router.stats()["moved_requests"] == 1
            check_raw(prompt(12), done, 4)

    run(main())


reports = st.lists(
    st.builds(
        TokenReport,
        st.floats(-50, 0, width=32),
        st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(-50, 0, width=32)), max_size=20).map(tuple),
        st.lists(st.integers(0, 1 << 20), max_size=20).map(lambda ids: np.array(ids, "<i4").tobytes()),
    ),
    min_size=1,
    max_size=20,
)


@given(reports)
@settings(max_examples=80, deadline=None)
def test_reports_travel_whole_and_broken_ones_are_noticed(given_reports):
    ((kind, payload),) = wire.Frames().feed(wire.encode_reports(given_reports))
    assert kind == wire.REPORTS and wire.decode_reports(payload) == given_reports
    with pytest.raises(ValueError):
        wire.decode_reports(payload[:1])
    with pytest.raises(ValueError):
        wire.decode_reports(payload + b"x")
    with pytest.raises(ValueError, match="reports arrived"):
        done = Completion([1], [0.0], [0], "stop")
        ((_, end),) = wire.Frames().feed(wire.encode_end(done))
        wire.decode_end(end, ([1], [0.0], [0]), [])


def test_vllm_reports_what_it_can_and_refuses_the_rest_by_name():
    async def main():
        async with standing_in(decoder(DENSE)) as standin:
            client = VllmEngine(standin.url, KEY, vocabulary=97)
            ask = Sampling(max_tokens=9, seed=1, temperature=0.7, presence_penalty=1.0, repetition_penalty=1.2)
            try:
                done = await client.generate(prompt(8), replace(ask, top_logprobs=3))
                asked = standin.asked[-1]["sampling_params"]
                assert asked["logprobs"] == 4 and (asked["presence_penalty"], asked["repetition_penalty"]) == (1.0, 1.2)
                for token, logprob, report in zip(done.tokens, done.logprobs, done.reports):
                    assert report.logprob == logprob and len(report.top) == 3
                    assert dict(report.top).get(token, -99.0) <= report.top[0][1]
                plain = Sampling(max_tokens=9, raw_logprobs=True, top_logprobs=2)
                check_raw(prompt(8), await client.generate(prompt(8), plain), 2)
                with pytest.raises(SamplingRefused, match="raw_logprobs") as refused:
                    await client.generate(prompt(8), replace(ask, raw_logprobs=True))
                assert refused.value.field == "raw_logprobs"
                with pytest.raises(EngineError, match="penalties"):
                    await client.generate(prompt(8), replace(ask, drawn=2))
                greedy = await client.generate(prompt(8), Sampling(max_tokens=3, temperature=0, top_logprobs=2))
                assert greedy.reports == [TokenReport(0.0, ((token, 0.0),)) for token in greedy.tokens]
            finally:
                await client.close()

    run(main())


def test_a_batch_of_different_wishes_gives_each_its_own():
    async def main():
        async with running(decoder()) as engine:
            asks = [Sampling(max_tokens=8, seed=i, top_logprobs=i, raw_logprobs=i % 2 == 1) for i in range(4)]
            done = await asyncio.gather(*(engine.generate(prompt(6, seed=i), s) for i, s in enumerate(asks)))
            assert done[0].reports is None
            for i in (1, 2, 3):
                assert all(len(report.top) == i for report in done[i].reports)
                check_raw(prompt(6, seed=i), done[i], i)  # nothing narrows the choice, so both are the same
            assert torch.isfinite(torch.tensor([r.logprob for r in done[3].reports])).all()

    run(main())
