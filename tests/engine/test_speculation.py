"""Guesses change how many tokens a step yields, never which."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from woodshed.engine.drafting import continuation
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.request import REST, DraftLength
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.mtp import MtpHead

from .models import DENSE, MOE, clone_state, decoder, prompt, run, worst_gap

SAMPLINGS = [
    Sampling(max_tokens=40, seed=1),
    Sampling(max_tokens=33, seed=2, temperature=0.6, top_p=0.9),
    Sampling(max_tokens=40, seed=3, top_k=5, logit_bias={3: 2.0}),
    Sampling(max_tokens=40, temperature=0.0),
    Sampling(
        max_tokens=40, seed=5, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.2, top_logprobs=3
    ),
]


async def complete(
    policy: Decoder, mtp: MtpHead | None, samplings: list[Sampling], **settings: object
) -> tuple[list[Completion], dict[str, float]]:
    engine = LocalEngine(policy, settings=EngineSettings.model_validate(settings), mtp=mtp)
    try:
        done = await asyncio.gather(
            *(engine.generate(prompt(11 + i, seed=i) * 2, s, session=f"s{i}") for i, s in enumerate(samplings))
        )
        again = [
            engine.generate([*(prompt(11 + i, seed=i) * 2), *c.tokens, 5, 6], s, session=f"s{i}")
            for i, (s, c) in enumerate(zip(samplings, done))
        ]
        return [*done, *await asyncio.gather(*again)], engine.stats()
    finally:
        await engine.close()


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("speculate", ["mtp", "ngram"])
def test_tokens_are_those_of_decoding_without_guesses(config: DecoderConfig, speculate: str) -> None:
    sharpness = 6.0 if speculate == "mtp" else 300.0  # a sharp random policy repeats itself
    policy, head = decoder(config, sharpness=sharpness), MtpHead(config, seed=3)
    plain, counts = run(complete(policy, head, SAMPLINGS, speculate="off"))
    assert counts["drafted_tokens"] == 0
    guessed, counts = run(complete(policy, head, SAMPLINGS, speculate=speculate, speculate_running=8))
    assert counts["drafted_tokens"] > 0
    for a, b in zip(plain, guessed, strict=True):
        assert a.tokens == b.tokens and a.stop_reason == b.stop_reason
        assert np.allclose(a.logprobs, b.logprobs, atol=1e-4)
        tops = [[value for report in one.reports or () for _, value in report.top] for one in (a, b)]
        assert np.allclose(*tops, atol=1e-4) and len(tops[0]) in (0, 3 * len(a.tokens))
        assert a.cached_tokens == b.cached_tokens
        assert [report.kept for report in a.reports or ()] == [report.kept for report in b.reports or ()]
        if a.routes is not None and b.routes is not None:
            known = (a.routes >= 0) & (b.routes >= 0)
            assert (a.routes[known] == b.routes[known]).all() and known.any()


class Perfect(MtpHead):
    """A head that knows: it answers with the hidden state that the network will have."""

    def __init__(self, policy: Decoder, tokens: list[int]) -> None:
        super().__init__(policy.config, seed=0)
        with torch.no_grad():
            ids = torch.tensor([tokens])
            self.known = policy.forward(ids, torch.arange(len(tokens))[None], causal_attend())[0]

    def forward(self, decoder, before, tokens, positions, attention_fn):  # type: ignore[no-untyped-def, override]
        super().forward(decoder, before, tokens, positions, attention_fn)
        return self.known[positions]


class Likeliest(MtpHead):
    """A head that is right as often as a head can be: it guesses what the network finds likeliest."""

    def forward(self, decoder, before, tokens, positions, attention_fn):  # type: ignore[no-untyped-def, override]
        super().forward(decoder, before, tokens, positions, attention_fn)
        hidden = []
        for row, position in zip(attention_fn.rows, positions.tolist()):
            ids = torch.from_numpy(attention_fn.cache.tokens[None, row, : position + 1].astype(np.int64))
            hidden.append(decoder.forward(ids, torch.arange(position + 1)[None], causal_attend())[0, -1])
        return torch.stack(hidden)


@pytest.mark.parametrize("speculate", ["mtp", "ngram"])
def test_the_distribution_is_exact_where_many_guesses_are_right_and_many_wrong(speculate: str) -> None:
    """Chi-square of whole completions against a full forward of all that are possible; the bound is about five standard
    deviations above the mean."""
    vocabulary, length, draws = 4, 5, 2000
    policy = decoder(replace(DENSE, vocab_size=vocabulary), sharpness=14.0)
    start = prompt(5, seed=1, vocabulary=vocabulary) * 3
    everything = torch.cartesian_prod(*[torch.arange(vocabulary)] * length)
    ids = torch.cat([torch.tensor(start).expand(len(everything), -1), everything], 1)
    with torch.no_grad():
        hidden = policy.forward(ids, torch.arange(ids.shape[1]).expand_as(ids), causal_attend())
        logprobs = policy.logits(hidden)[:, len(start) - 1 : -1].log_softmax(-1)
    exact = logprobs.gather(-1, everything[..., None])[..., 0].sum(-1).double().exp().numpy()
    assert abs(exact.sum() - 1) < 1e-5

    async def main() -> tuple[list[Completion], dict[str, float]]:
        settings = EngineSettings(speculate=speculate, speculate_running=64, max_running=64)
        engine = LocalEngine(policy, settings=settings, mtp=Likeliest(policy.config))
        try:
            asks = [engine.generate(start, Sampling(max_tokens=length, seed=seed)) for seed in range(draws)]
            return await asyncio.gather(*asks), engine.stats()
        finally:
            await engine.close()

    done, counts = run(main())
    right = counts["accepted_tokens"] / counts["drafted_tokens"]
    assert counts["drafted_tokens"] > draws and 0.3 < right < 0.9
    seen = np.zeros(len(everything))
    for one in done:
        seen[int(np.ravel_multi_index(one.tokens, (vocabulary,) * length))] += 1
    expected = exact * draws
    rare = expected < 5
    seen, expected = (np.append(of[~rare], of[rare].sum()) for of in (seen, expected))
    square = float(((seen - expected) ** 2 / expected).sum())
    assert len(seen) > 20 and square < len(seen) - 1 + 5 * (2 * (len(seen) - 1)) ** 0.5


def test_right_guesses_are_kept_and_save_steps() -> None:
    policy = decoder(sharpness=6.0)
    start = prompt(20)
    greedy = Sampling(max_tokens=60, temperature=0.0)

    async def one(mtp: MtpHead | None, **settings: object) -> tuple[Completion, dict[str, float]]:
        engine = LocalEngine(policy, settings=EngineSettings.model_validate(settings), mtp=mtp)
        try:
            return await engine.generate(start, greedy), engine.stats()
        finally:
            await engine.close()

    plain, without = run(one(None))
    assert without["iterations"] == 60
    done, counts = run(one(Perfect(policy, start + plain.tokens), draft_tokens=8))
    assert done.tokens == plain.tokens
    assert counts["accepted_tokens"] == counts["drafted_tokens"] > 0
    assert counts["iterations"] + counts["accepted_tokens"] == 60
    assert counts["iterations"] < 15


def test_stop_tokens_and_limits_hold_within_a_guess() -> None:
    policy = decoder(sharpness=6.0)
    start = prompt(20)

    async def both(sampling: Sampling) -> tuple[Completion, Completion]:
        plain = LocalEngine(policy)
        reference = await plain.generate(start, Sampling(max_tokens=60, temperature=0.0))
        expected = await plain.generate(start, sampling)
        await plain.close()
        engine = LocalEngine(
            policy, settings=EngineSettings(draft_tokens=8), mtp=Perfect(policy, start + reference.tokens)
        )
        got = await engine.generate(start, sampling)
        await engine.close()
        return expected, got

    for most in range(1, 24):
        expected, got = run(both(Sampling(max_tokens=most, temperature=0.0)))
        assert got.tokens == expected.tokens and got.stop_reason == "length"
    everything, _ = run(both(Sampling(max_tokens=40, temperature=0.0)))
    for stop in set(everything.tokens):
        expected, got = run(both(Sampling(max_tokens=40, temperature=0.0, stop_ids=(stop,))))
        assert got.tokens == expected.tokens and got.stop_reason == expected.stop_reason == "stop"


def test_weights_that_arrive_between_guesses() -> None:
    """Every token has the version that sampled it, and its log-probability."""
    old, new = decoder(seed=0, sharpness=6.0), decoder(seed=1, sharpness=6.0)
    state, head = clone_state(new), MtpHead(DENSE, seed=3)

    async def main() -> Completion:
        engine = LocalEngine(old, settings=EngineSettings(speculate="mtp"), mtp=head)
        arrived = asyncio.Event()
        count = 0

        def on_token(token: int, logprob: float, version: int) -> None:
            nonlocal count
            count += 1
            if count == 30:
                loop.call_soon_threadsafe(arrived.set)

        loop = asyncio.get_running_loop()
        task = asyncio.create_task(engine.generate(prompt(20), Sampling(max_tokens=200, seed=5), on_token=on_token))
        await arrived.wait()
        await engine.update_weights(1, state, kv="recompute")
        done = await task
        await engine.close()
        return done

    done = run(main())
    assert done.versions == sorted(done.versions)
    late = done.versions.index(1) if 1 in done.versions else len(done.versions)
    assert late < len(done.versions)
    start = prompt(20) + done.tokens[:late]
    assert worst_gap(new, start, done.tokens[late:], done.logprobs[late:]) < 1e-3


def test_a_head_that_is_asked_for_must_be_there() -> None:
    with pytest.raises(ValueError, match=r"mtp\.safetensors"):
        LocalEngine(decoder(), settings=EngineSettings(speculate="mtp"))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6))
def test_prompt_lookup_finds_the_latest_earlier_run(tokens: list[int], count: int) -> None:
    found = continuation(np.array(tokens, np.int32), count, 3, 2)
    expected: list[int] = []
    for length in (3, 2):
        if expected or length >= len(tokens):
            continue
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                expected = tokens[start + length :][:count]
                break
    assert found == expected


def test_pace_follows_what_was_kept() -> None:
    length = DraftLength(6)
    assert length.next() == 3
    length.update(3, 3)
    length.update(4, 4)
    assert length.next() == 5
    length.update(5, 1)
    assert length.next() == 2
    length.update(2, 0)
    assert length.next() == 1
    length.update(1, 0)
    assert [length.next() for _ in range(REST + 1)] == [0] * REST + [1]
