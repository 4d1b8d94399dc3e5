"""The trainer's step with fused operators, without them, and with products in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.native import build, fused
from woodshed.policy.native.build import NoKernels
from woodshed.policy.operators import TORCH, products_in
from woodshed.policy.processor import has_flags
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.train.settings import OptimizerSettings, TrainSettings
from woodshed.train.trainer import Trainer

from .conftest import CONFIG, MOE, MakeBatch
from .test_loss import gradients, reference

LLAMA = replace(CONFIG, family="llama", qk_norm=False, num_kv_heads=1)
QWEN2 = replace(CONFIG, family="qwen2", qk_norm=False, qkv_bias=True, tie_embeddings=False)
OFF = TrainSettings.model_validate({"importance": {"mode": "off"}})
HALF = TrainSettings(products="bfloat16", optimizer=OptimizerSettings(kind="muon"))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def kernels() -> None:
    try:
        fused._library()
    except NoKernels as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("config", [CONFIG, LLAMA, QWEN2, MOE], ids=["qwen3", "llama", "qwen2", "moe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_by_fused_operators(
    kernels: None, threads: int, config: DecoderConfig, recompute: bool, make_batch: MakeBatch
) -> None:
    """Against float64 autograd over whole sequences, and beside torch's operators."""
    decoder, batch = Decoder(config, seed=1), make_batch(parts=("rl", "ce"))
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith(("norm", "bias")):  # ones and zeros would hide what is left out
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    exact, value = reference(decoder, batch)
    by_torch, _ = gradients(decoder, batch, OFF)
    fused.fuse(decoder)
    decoder.recompute = recompute
    assert decoder.operators is fused.FUSED
    got, seen = gradients(decoder, batch, OFF)
    assert sum(seen.loss.values()) == pytest.approx(float(value), rel=1e-5)
    assert got.keys() == by_torch.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient.double(), exact[name], rtol=1e-4, atol=2e-6, msg=name)
        torch.testing.assert_close(gradient, by_torch[name], rtol=1e-4, atol=2e-6, msg=name)


def test_without_a_compiler_torch_computes(
    monkeypatch: pytest.MonkeyPatch, make_batch: MakeBatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    fused._library.cache_clear()
    build._begun.cache_clear()
    try:
        trainer = Trainer(Decoder(CONFIG, seed=1), TrainSettings())
        assert trainer.decoder.operators is TORCH and "no C++ compiler" in caplog.text
        assert trainer.step(make_batch())["skipped"] == 0
    finally:
        fused._library.cache_clear()
        build._begun.cache_clear()


@pytest.mark.parametrize("settings", [HALF, TrainSettings(products="bfloat16")], ids=["muon", "adamw"])
def test_resume_with_products_in_bfloat16_is_bitwise_equal(
    threads: int, settings: TrainSettings, make_batch: MakeBatch
) -> None:
    trainer, again = (Trainer(Decoder(CONFIG, seed=seed), settings) for seed in (1, 9))
    trainer.step(make_batch(seed=1, step=1))
    load_hf_state(again.decoder, {name: tensor.clone() for name, tensor in hf_state(trainer.decoder).items()})
    tensors, rest = trainer.state()
    again.load_state({name: tensor.clone() for name, tensor in tensors.items()}, rest)
    for step in (2, 3):
        left, right = (t.step(make_batch(seed=step, step=step)) for t in (trainer, again))
        assert left["loss"] == right["loss"] and left["grad_norm"] == right["grad_norm"]
    for mine, other in zip(trainer.decoder.parameters(), again.decoder.parameters()):
        assert torch.equal(mine, other)


def test_products_in_bfloat16_round_operands_only() -> None:
    """Results are float32 and as near as rounded operands allow; torch's own setting comes back, after errors too.
    Without AMX torch may have no kernels for it, and multiplies what is not rounded."""
    x, w = (torch.randn(96, 64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    rounded, exact = x.bfloat16().double() @ w.bfloat16().double().T, x.double() @ w.double().T
    before = torch.backends.mkldnn.matmul.fp32_precision
    with pytest.raises(KeyError), products_in("bfloat16"):
        wanted = rounded if has_flags("amx_bf16") or (x @ w.T - exact).abs().max() > 1e-3 else exact
        torch.testing.assert_close((x @ w.T).double(), wanted, rtol=1e-5, atol=1e-4)
        raise KeyError
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    torch.testing.assert_close((x @ w.T).double(), exact, rtol=1e-5, atol=1e-4)
    with products_in("float32"):
        assert torch.equal(x @ w.T, torch.nn.functional.linear(x, w))


def test_the_setting_reaches_the_step(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are near float32's, and the optimizer's products are inside as well."""
    losses = {}
    for products in ("float32", "bfloat16"):
        trainer = Trainer(Decoder(CONFIG, seed=1), HALF.model_copy(update={"products": products}))
        seen: list[str] = []
        step = trainer.optimizer.muon.step

        def noted(lr: float, step=step, seen=seen) -> None:
            seen.append(torch.backends.mkldnn.matmul.fp32_precision)
            step(lr)

        monkeypatch.setattr(trainer.optimizer.muon, "step", noted)
        losses[products] = [trainer.step(make_batch(seed=s, step=s, parts=("ce",)))["loss"] for s in (1, 2, 3)]
        assert (seen == ["bf16"] * 3) == (products == "bfloat16")
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.05)
