"""Kept sets of top-k, top-p and min-p, compared with a float64 computation of their definitions on a full forward."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine.vllm.standin import standing_in
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.routing.router import Router
from woodshed.engine.vllm.client import VllmEngine
from woodshed.policy.decoder import Decoder, causal_attend

from .models import DENSE, decoder, prompt, run, running
from .served import KEY, KINDS, routed, serving
from .test_router import interrupt

SHARPNESS = 25.0
"""Sharpness at which kept sets have one to some dozens of tokens."""
CUTS = [
    {"top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.1},
    {"top_k": 30, "top_p": 0.7, "min_p": 0.02},
    {"top_p": 0.8, "temperature": 0.7, "logit_bias": {3: 2.0, 5: -np.inf}},
]


def logits64(policy: Decoder, tokens: list[int]) -> NDArray[np.float64]:
    """The logits of a full forward in float64, ``[T, V]``."""
    twin = Decoder(policy.config, seed=None, dtype=torch.float64)
    twin.load_state_dict({name: tensor.double() for name, tensor in policy.state_dict().items()})
    with torch.no_grad():
        hidden = twin.forward(torch.tensor([tokens]), torch.arange(len(tokens))[None], causal_attend())
        return twin.logits(hidden)[0].double().numpy()


def expected(logits_V: NDArray[np.float64], ask: Sampling) -> NDArray[np.float64]:
    """Log-probabilities ``[V]`` of the truncated distribution, token by token as the definitions say."""
    x = logits_V.copy()
    for token, bias in ask.logit_bias.items():
        x[token] += bias
    x /= ask.temperature
    order = sorted(range(len(x)), key=lambda token: -x[token])
    if ask.top_k:
        order = order[: ask.top_k]

    def probabilities(ids: list[int]) -> NDArray[np.float64]:
        e = np.exp(x[ids] - x[ids].max())
        return e / e.sum()

    p = probabilities(order)
    nucleus = [token for i, token in enumerate(order) if i == 0 or p[:i].sum() < ask.top_p or ask.top_p == 1]
    kept = [token for token in nucleus if p[order.index(token)] >= ask.min_p * p[0] and x[token] > -np.inf]
    out = np.full(len(x), -np.inf)
    out[kept] = np.log(probabilities(kept))
    return out


def check(start: list[int], done: Completion, ask: Sampling, *, sharpness: float = SHARPNESS) -> list[int]:
    """Compare sets and log-probabilities; returns the sizes of the sets."""
    reference = logits64(decoder(sharpness=sharpness), start + done.tokens)
    assert done.reports is not None and len(done.reports) == len(done.tokens)
    sizes = []
    for i, (token, logprob, report) in enumerate(zip(done.tokens, done.logprobs, done.reports)):
        wanted = expected(reference[len(start) - 1 + i], ask)
        ids = np.frombuffer(report.kept, "<i4")
        assert ids.tolist() == np.flatnonzero(wanted > -np.inf).tolist()
        assert token in ids and logprob == pytest.approx(wanted[token], abs=1e-5)
        sizes.append(len(ids))
    return sizes


@pytest.mark.parametrize("kind", KINDS)
def test_sets_and_log_probabilities_are_those_of_the_definition(kind: str) -> None:
    async def main() -> None:
        sizes = []
        async with KINDS[kind](decoder(sharpness=SHARPNESS)) as engine:
            assert engine.kept_sets_refused() is None
            asks = [Sampling(max_tokens=24, seed=i, **fields) for i, fields in enumerate(CUTS)]
            for ask, done in zip(asks, await asyncio.gather(*(engine.generate(prompt(12), a) for a in asks))):
                sizes += check(prompt(12), done, ask)
            whole = await engine.generate(prompt(12), Sampling(max_tokens=4, seed=1))
            greedy = await engine.generate(prompt(12), Sampling(max_tokens=4, temperature=0, top_p=0.5))
            assert whole.reports is None and greedy.reports is None, "nothing was truncated"
        assert min(sizes) == 1 and max(sizes) > 12

    run(main())


def test_log_probabilities_on_request_come_with_the_sets() -> None:
    ask = Sampling(max_tokens=12, seed=3, top_p=0.8, top_logprobs=2, raw_logprobs=True)

    async def main() -> None:
        async with KINDS["remote"](decoder(sharpness=SHARPNESS)) as engine:
            done = await engine.generate(prompt(12), ask)
            check(prompt(12), done, ask)
            assert done.reports is not None and all(len(report.top) == 2 for report in done.reports)

    run(main())


def test_drafts_change_no_set() -> None:
    async def main(speculate: str) -> tuple[list[Completion], int]:
        async with running(decoder(sharpness=60.0), speculate=speculate, speculate_running=8) as engine:
            asks = [Sampling(max_tokens=40, seed=i, top_p=0.9) for i in range(3)]
            done = await asyncio.gather(*(engine.generate(prompt(9, seed=i) * 2, s) for i, s in enumerate(asks)))
            return list(done), engine.stats()["accepted_tokens"]

    plain, _ = run(main("off"))
    drafted, accepted = run(main("ngram"))
    assert accepted > 0
    for i, (a, b) in enumerate(zip(plain, drafted)):
        assert a.tokens == b.tokens and a.reports is not None and b.reports is not None
        assert [r.kept for r in a.reports] == [r.kept for r in b.reports]
        check(prompt(9, seed=i) * 2, b, Sampling(top_p=0.9), sharpness=60.0)


def test_sets_survive_the_engine_that_reported_them() -> None:
    async def main() -> None:
        async with (
            serving(decoder(sharpness=SHARPNESS)) as a,
            serving(decoder(sharpness=SHARPNESS)) as b,
            routed(a, b) as router,
        ):
            ask = Sampling(max_tokens=120, seed=3, top_p=0.9)
            done, _, _ = await interrupt(router, (a, b), ask)
            assert router.stats()["moved_requests"] == 1 and len(done.tokens) == 120
            check(prompt(12), done, ask)

    run(main())


def test_vllm_reports_none_and_says_so() -> None:
    async def main() -> None:
        async with standing_in(decoder(DENSE)) as standin:
            client = VllmEngine(standin.url, KEY, vocabulary=97)
            router = Router([client])
            assert "top_p" in (client.kept_sets_refused() or "")
            assert router.kept_sets_refused() == client.kept_sets_refused()
            ask = Sampling(max_tokens=6, seed=1, top_p=0.9)
            assert (await client.generate(prompt(8), ask)).reports is None
            asked = await client.generate(prompt(8), replace(ask, top_logprobs=1))
            assert asked.reports is not None and {report.kept for report in asked.reports} == {b""}
            await router.close()

    run(main())
