"""Penalties against transformers' processor, and against written-out definitions in double precision."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Sampling
from woodshed.engine.sampler import TokenCounts, adjusted_logits
from woodshed.engine.settings import EngineSettings
from woodshed.policy.decoder import causal_attend

from .models import decoder, full_logprobs, prompt, run, running
from .served import routed, serving
from .test_grammar import GRAMMARS, LONG
from .test_grammar import sampling as forced
from .test_router import interrupt

PENALISED = Sampling(
    max_tokens=40, seed=5, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.3, temperature=0.8
)
tokens = st.lists(st.integers(0, 19), max_size=30)


def by_definition(logits: list[float], s: Sampling, before: list[int], generated: list[int]) -> list[float]:
    """Logits after penalties, token by token in double precision; ``before`` is the prompt."""
    out = []
    for token, x in enumerate(logits):
        count = generated.count(token)
        if count or token in before:
            x = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
        out.append(x - count * s.frequency_penalty - (s.presence_penalty if count else 0.0))
    return out


def logprobs_by_definition(policy, s: Sampling, start: list[int], generated: list[int]) -> list[float]:
    """Log-probability of each generated token, from a full forward without any cache."""
    # a softmax does not see a constant, but repetition does: so logits and not log-probabilities
    with torch.no_grad():
        ids = torch.tensor([start + generated])
        logits = policy.logits(policy.forward(ids, torch.arange(ids.shape[1])[None], causal_attend()))[0]
    out = []
    for i, token in enumerate(generated):
        row = by_definition(logits[len(start) - 1 + i].double().tolist(), s, start, generated[:i])
        out.append(float((torch.tensor(row, dtype=torch.float64) / s.temperature).log_softmax(-1)[token]))
    return out


@given(tokens, tokens, tokens, st.floats(-2, 2), st.floats(-2, 2), st.floats(0.5, 2))
@settings(max_examples=60, deadline=None)
def test_counts_follow_the_definitions_after_every_guess(before, generated, draft, presence, frequency, repetition):
    s = Sampling(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    counts = TokenCounts(s, before, generated)
    logits = torch.randn(1 + len(draft), 20, generator=torch.Generator().manual_seed(1)) * 3
    for _ in range(2):  # nothing of the draft stays
        rows = list(enumerate(counts.after(draft)))
        got = adjusted_logits(logits, [s] * len(rows), penalised=rows)
        for i in range(len(rows)):
            wanted = by_definition(logits[i].double().tolist(), s, before, generated + draft[:i])
            assert got[i].tolist() == pytest.approx(wanted, abs=1e-4)
    assert np.array_equal(logits, torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * 3)


def test_repetition_is_that_of_transformers():
    s, logits = Sampling(repetition_penalty=1.7), torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    given_ids = torch.randint(0, 50, (3, 30), generator=torch.Generator().manual_seed(2))
    rows = [(i, TokenCounts(s, ids[:20], ids[20:]).after([])[0]) for i, ids in enumerate(given_ids.tolist())]
    wanted = RepetitionPenaltyLogitsProcessor(1.7)(given_ids, logits.clone())
    assert torch.allclose(adjusted_logits(logits, [s] * 3, penalised=rows), wanted)


@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_an_engine_samples_and_records_the_penalised_distribution(speculate):
    """In a batch with requests that have none, with guesses and without."""

    async def main():
        # a sharp policy repeats itself, so that there are guesses
        async with running(decoder(sharpness=80.0), speculate=speculate, speculate_running=8) as engine:
            asks = [
                PENALISED,
                replace(PENALISED, presence_penalty=-2.0, frequency_penalty=-2.0),
                Sampling(max_tokens=40),
            ]
            starts = [prompt(9, seed=i) * 2 for i in range(len(asks))]
            done = await asyncio.gather(*(engine.generate(t, s) for t, s in zip(starts, asks)))
            if speculate == "ngram":
                assert engine.stats()["accepted_tokens"] > 0
        policy = decoder(sharpness=80.0)
        for start, s, completion in zip(starts, asks, done):
            wanted = logprobs_by_definition(policy, s, start, completion.tokens)
            assert completion.logprobs == pytest.approx(wanted, abs=2e-3)
        return [completion.tokens for completion in done[:1]]

    assert run(main()) == run(main())


def test_a_greedy_policy_stops_repeating_itself():
    async def main():
        async with running(decoder(sharpness=80.0)) as engine:
            greedy = Sampling(max_tokens=60, temperature=0.0)
            plain = await engine.generate(prompt(9), greedy)
            never = await engine.generate(prompt(9), replace(greedy, presence_penalty=2.0, frequency_penalty=2.0))
            assert len(set(never.tokens)) > len(set(plain.tokens))

    run(main())


def test_a_request_goes_on_with_its_counts_where_its_engine_dies():
    async def main():
        async with serving() as a, serving() as b, routed(a, b) as router:
            ask = replace(PENALISED, max_tokens=120)
            whole = await router.generate(prompt(12), ask)
            done, _, _ = await interrupt(router, (a, b), ask)
            assert done.tokens == whole.tokens and router.stats()["moved_requests"] == 1
            assert np.allclose(done.logprobs, whole.logprobs, atol=1e-3)

    run(main())


def test_penalties_and_a_grammar_go_together():
    async def main():
        engine = LocalEngine(decoder(), settings=EngineSettings(), grammars=GRAMMARS)
        ask = replace(forced(LONG, seed=9), repetition_penalty=1.5, presence_penalty=1.0, raw_logprobs=True)
        done = await engine.generate(prompt(14), ask)
        await engine.close()
        reference = full_logprobs(decoder(), prompt(14) + done.tokens)
        raw = [float(reference[13 + i, token]) for i, token in enumerate(done.tokens)]
        assert [report.logprob for report in done.reports] == pytest.approx(raw, abs=1e-3)

    run(main())


@pytest.mark.parametrize(
    "field,value",
    [
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
    ],
)
def test_what_is_out_of_range_is_named(field, value):
    async def main():
        async with running(decoder()) as engine:
            with pytest.raises(ValueError, match=rf"sampling\.{field}"):
                await engine.generate(prompt(5), Sampling(**{field: value}))
            with pytest.raises(ValueError, match=r"sampling\.drawn"):
                await engine.generate([1], replace(PENALISED, drawn=2))

    run(main())
