"""Rearranged copies of the matrices change how long a product takes, and nothing else."""

import asyncio

import pytest
import torch

from woodshed.engine import packing
from woodshed.engine.packing import FEWEST, MOST, PackedLinear, packs
from woodshed.engine.protocol import Sampling
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder

from .models import DENSE, MOE, clone_state, decoder, prompt, run, running, worst_gap

needs_bf16 = pytest.mark.skipif(
    not packs(decoder().to(torch.bfloat16)), reason="oneDNN does not multiply bfloat16 on this processor"
)


def products(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of what oneDNN multiplies from here on."""
    seen, real = [], torch.ops.mkldnn._linear_pointwise

    def counted(x, *rest):
        seen.append(tuple(x.shape))
        return real(x, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return seen


@pytest.mark.parametrize("amd", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 33, 256, 257])
def test_products_are_those_of_float64(rows, amd, monkeypatch):
    monkeypatch.setattr(packing, "made_by_amd", lambda: amd)
    policy = decoder(DecoderConfig(**{**DENSE.__dict__, "qkv_bias": True}))
    layer = policy.layers[0]
    layer.qkv_bias.data.normal_()
    packed, seen = PackedLinear(policy), products(monkeypatch)
    x = torch.randn(rows, 2 * layer.qkv.shape[1])[:, ::2]  # not contiguous
    with torch.inference_mode():
        for weight, bias in ((layer.qkv, layer.qkv_bias), (layer.gate_up, None), (policy.head_weight, None)):
            wanted = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
            assert (packed(x, weight, bias) - wanted).abs().max() < 1e-5
    assert len(seen) == (3 if amd or FEWEST <= rows <= MOST else 0)


@needs_bf16
@pytest.mark.parametrize("rows", [1, 2, 33, 300])
def test_products_of_bfloat16_differ_from_float64_by_their_rounding(rows, monkeypatch):
    policy = decoder(DecoderConfig(**{**DENSE.__dict__, "qkv_bias": True})).to(torch.bfloat16)
    layer = policy.layers[0]
    layer.qkv_bias.data.normal_()
    packed, seen = PackedLinear(policy), products(monkeypatch)
    x = torch.randn(rows, 2 * layer.qkv.shape[1]).bfloat16()[:, ::2]  # not contiguous
    with torch.inference_mode():
        for weight, bias in ((layer.qkv, layer.qkv_bias), (layer.gate_up, None)):
            wanted = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
            assert torch.allclose(packed(x, weight, bias).double(), wanted, rtol=2**-8, atol=1e-5)
    assert len(seen) == 2


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_the_engine_samples_from_the_weights_that_it_was_given_last(config, monkeypatch):
    monkeypatch.setattr(packing, "WORTH_BYTES", 0)
    monkeypatch.setattr(packing, "made_by_amd", lambda: False)
    seen = products(monkeypatch)

    async def gaps(engine, reference: Decoder) -> list[float]:
        asks = [prompt(20 + i, seed=i) for i in range(6)]
        done = await asyncio.gather(*(engine.generate(ask, Sampling(max_tokens=8)) for ask in asks))
        return [worst_gap(reference, ask, one.tokens, one.logprobs) for ask, one in zip(asks, done)]

    async def main():
        async with running(decoder(config), native="off") as engine:
            assert max(await gaps(engine, decoder(config))) < 1e-4
            assert seen and all(FEWEST <= shape[0] <= MOST for shape in seen)
            await engine.update_weights(1, clone_state(decoder(config, seed=1)))
            assert max(await gaps(engine, decoder(config, seed=1))) < 1e-4

    run(main())


@needs_bf16
def test_new_weights_in_bfloat16(monkeypatch):
    seen = products(monkeypatch)

    async def main():
        async with running(decoder(), dtype="bfloat16", seed=3, native="off") as engine:
            for version in range(1, 3):
                policy = decoder(seed=version)
                await engine.update_weights(version, clone_state(policy.to(torch.bfloat16)))
                done = await engine.generate(prompt(20), Sampling(max_tokens=8))
                right = worst_gap(policy.float(), prompt(20), done.tokens, done.logprobs)
                assert right < 0.3 < worst_gap(decoder(seed=version - 1), prompt(20), done.tokens, done.logprobs)

    run(main())
    assert seen


def test_only_where_it_pays(monkeypatch):
    assert not packs(decoder())  # fits a cache
    monkeypatch.setattr(packing, "WORTH_BYTES", 0)
    assert packs(decoder()) and not packs(decoder().to(torch.float16))
    seen = products(monkeypatch)

    async def main():
        async with running(decoder(), pack="off") as engine:
            await engine.generate(prompt(20), Sampling(max_tokens=3))

    run(main())
    assert not seen
