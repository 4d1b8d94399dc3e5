"""On a GPU: trainer and engine give what they give on a CPU, and state, weights and checkpoints move between the two.

Nothing here needs the compiled kernels of a CPU: the engines on a CPU compute with torch's operators.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, load_decoder, load_policy, save_policy
from woodshed.policy.mtp import MtpHead
from woodshed.policy.operators import TORCH
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.train import reference, trainer
from woodshed.train.batch import Sequence as Row
from woodshed.train.batch import TrainBatch, pack
from woodshed.train.checkpoint import load_checkpoint, save_checkpoint
from woodshed.train.hinted import HintedMessage
from woodshed.train.mtp import distill
from woodshed.train.reference import Reference
from woodshed.train.settings import HintKlSettings, KlSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.token_sets import SetTable
from woodshed.train.trainer import Trainer
from woodshed.train.worker import Worker, batch_path
from woodshed.train.worker_config import WorkerConfig
from woodshed.weights.follow import Follower
from woodshed.weights.image import assemble
from woodshed.weights.settings import WeightSettings

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DENSE = DecoderConfig(
    vocab_size=97, d_model=64, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=96, max_positions=512
)
MOE = replace(DENSE, family="qwen3_moe", num_experts=6, num_experts_per_tok=2, moe_d_ff=32, mlp_only_layers=(1,))
LLAMA = replace(DENSE, family="llama", qk_norm=False, tie_embeddings=False)
NO_WARMUP = ScheduleSettings(warmup_steps=0)
ADAMW = OptimizerSettings(lr=1e-2, eps=1e-4)  # a small eps would make signs of gradients near zero visible
MUON = OptimizerSettings(kind="muon", lr=1e-2, eps=1e-4)


@pytest.fixture(autouse=True)
def torch_computes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compilation of fused operators for the CPU's side."""
    for module in (trainer, reference):
        monkeypatch.setattr(module, "fuse", lambda decoder: decoder.compute_with(operators=TORCH))
    yield


def random_decoder(config: DecoderConfig = DENSE, seed: int = 0, device: str = "cpu") -> Decoder:
    """A policy whose distributions are far from uniform."""
    made = Decoder(config, seed=seed)
    with torch.no_grad():
        made.norm.mul_(10.0)
    return made.to(device)


def batch(parts: Sequence[str] = ("rl", "ce"), *, seed: int = 0, step: int = 1, alike: bool = False) -> TrainBatch:
    """Rows of several lengths; ``alike``: with a long common beginning, which is computed once. A third of the tokens
    were sampled from a set, and every row has a message with a hint."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 97, 40)
    rows = []
    for i, size in enumerate((30, 7, 51, 30)):
        tokens = rng.integers(0, 97, size).astype(np.int32)
        if alike:
            tokens = np.concatenate((common, tokens)).astype(np.int32)
        trained = np.zeros(len(tokens), np.bool_)
        trained[-size + 1 :] = rng.random(size - 1) < 0.7
        hint = np.zeros(len(tokens), np.bool_)
        hint[-4:] = True
        behaviour = np.where(trained | hint, -4.5 + 0.3 * rng.standard_normal(len(tokens)), np.nan)
        table, numbers = SetTable(), np.full(len(tokens), -1, np.int32)
        for at in np.flatnonzero(trained)[::3]:
            allowed = np.unique(np.append(rng.integers(0, 97, 3 if at % 2 else 60), tokens[at]))
            numbers[at] = table.add_ids(allowed)
        sets, numbers = table.build(numbers)
        weights = {
            part: np.where(hint if part == "hint_kl" else trained, rng.standard_normal(len(tokens)), 0)
            for part in parts
        }
        rows.append(
            Row(
                tokens,
                {part: weight.astype(np.float32) for part, weight in weights.items()},
                behaviour.astype(np.float32),
                (behaviour + 0.1).astype(np.float32) if "ref_kl" in parts else None,
                np.where(trained, 0, -1).astype(np.int32),
                trajectory=f"t{i}",
                allowed=sets,
                allowed_of=numbers,
                hinted=(HintedMessage(len(tokens) - 4, len(tokens), rng.integers(0, 97, 12).astype(np.int32)),),
            )
        )
    return pack(rows, id=f"b{step}", step=step, denominators=dict.fromkeys(parts, 20.0))


def stepped(device: str, settings: TrainSettings, made: TrainBatch, config: DecoderConfig = DENSE) -> Any:
    """Metrics and weights after one step."""
    one = Trainer(random_decoder(config, device=device), settings.model_copy(update={"schedule": NO_WARMUP}))
    metrics = one.step(made)
    return metrics, {name: tensor.cpu().clone() for name, tensor in hf_state(one.decoder).items()}


@pytest.mark.parametrize("config", [DENSE, LLAMA, MOE], ids=["qwen3", "llama", "moe"])
@pytest.mark.parametrize(
    "parts, settings",
    [
        (("rl", "ce", "ref_kl"), TrainSettings(optimizer=ADAMW)),
        (("ppo", "ce"), TrainSettings(optimizer=MUON)),
        (("gspo",), TrainSettings(optimizer=ADAMW, recompute=True, kl=KlSettings(estimator="k3"))),
        (("rl", "hint_kl"), TrainSettings(optimizer=ADAMW, hint_kl=HintKlSettings(form="jsd", top_k=9))),
        (("hint_kl",), TrainSettings(optimizer=ADAMW, logits_elements=97 * 7)),
    ],
    ids=["rl", "ppo-muon", "gspo-recompute", "hints", "hints-in-chunks"],
)
@pytest.mark.parametrize("alike", [False, True], ids=["apart", "alike"])
def test_a_step_is_that_of_a_cpu(config, parts, settings, alike):
    made = batch(parts, alike=alike)
    expected, weights = stepped("cpu", settings, made, config)
    got, others = stepped(DEVICE, settings, made, config)
    for name in ("loss", "grad_norm", "entropy", "dlogp_mean", "hint_kl", "kl"):
        if name in expected:
            assert got[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, atol=2e-4, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")


def test_products_in_bfloat16_are_near_those_in_float32():
    made = batch(alike=True)
    # the loss is a sum of terms of both signs: what is rounded is as large as the terms are
    positive = replace(made, weights={part: np.abs(weight) for part, weight in made.weights.items()})
    for kind in ("adamw", "muon"):
        optimizer = OptimizerSettings(kind=kind)
        sizes, _ = stepped(DEVICE, TrainSettings(optimizer=optimizer), positive)
        exact, _ = stepped(DEVICE, TrainSettings(optimizer=optimizer), made)
        rounded, weights = stepped(DEVICE, TrainSettings(optimizer=optimizer, products="bfloat16"), made)
        assert rounded["loss"] == pytest.approx(
            exact["loss"], abs=0.002 * (abs(sizes["loss_rl"]) + abs(sizes["loss_ce"]))
        )
        assert rounded["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.05)
        assert rounded["loss"] != exact["loss"]
        assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in weights.values())


def test_attention_stores_no_scores():
    """With fewer key heads than query heads, float32 or a mask, torch would otherwise choose the kernel that does."""
    from woodshed.policy.attention import Ragged

    config = replace(DENSE, num_layers=1, num_heads=8)
    decoder = Decoder(config, seed=0, device=DEVICE)
    length, half = 4096, 2048
    whole = [torch.randn(length, heads, 16, device=DEVICE, requires_grad=True) for heads in (8, 2, 2)]
    for shared in (0, half):
        lengths, parents = ([shared, length - shared], [-1, 0]) if shared else ([length], [-1])
        layout = Ragged(lengths, parents, torch.arange(length, device=DEVICE))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        layout.attend(*whole).sum().backward()
        assert torch.cuda.max_memory_allocated() - before < 4 * 8 * half * half  # the scores of the smaller case
    assert decoder.device.type == DEVICE


def test_optimizer_and_checkpoint_move_between_devices(tmp_path):
    """Training goes on from a checkpoint of a GPU, there and on a CPU, as it would have without a pause."""
    settings = TrainSettings(optimizer=MUON, schedule=NO_WARMUP, fsync=False)
    first = Trainer(random_decoder(device=DEVICE), settings)
    first.step(batch(step=1))
    tensors, rest = first.state()
    path = save_checkpoint(tmp_path, 1, hf_state(first.decoder), tensors, rest, fsync=False)
    first.step(batch(seed=1, step=2))
    for device in (DEVICE, "cpu"):
        found = load_checkpoint(path)
        other = Trainer(Decoder(DENSE, seed=7, device=device), settings)
        load_hf_state(other.decoder, found.model)
        other.load_state(found.optimizer, found.state)
        other.step(batch(seed=1, step=2))
        for (name, got), expected in zip(hf_state(other.decoder).items(), hf_state(first.decoder).values()):
            torch.testing.assert_close(
                got.cpu(), expected.cpu(), atol=2e-4, rtol=1e-3, msg=lambda t, n=name: f"{n}: {t}"
            )


@pytest.fixture
def policy_directory(tmp_path: Path) -> Path:
    chat = get_format("compact")
    tokenizer = Tokenizer(train_bpe(["def f(x):\n    return x\n" * 9], 300, chat.special_tokens))
    config = replace(DENSE, vocab_size=tokenizer.vocab_size)
    decoder = random_decoder(config, device=DEVICE)
    return save_policy(Policy(decoder, tokenizer, chat, config, 0, MtpHead(config, device=DEVICE)), tmp_path / "start")


def test_the_worker_publishes_and_goes_on(policy_directory: Path, tmp_path: Path):
    """A reference, a lagged teacher, the chain and a restart; what is published is what the checkpoint holds."""
    settings = TrainSettings(
        fsync=False, hint_kl=HintKlSettings(teacher="lagged", teacher_steps=2), kl=KlSettings(reference_steps=1)
    )
    config = WorkerConfig(
        policy=policy_directory,
        batches=tmp_path / "batches",
        weights=str(tmp_path / "weights"),
        checkpoints=tmp_path / "checkpoints",
        metrics=tmp_path / "trainer.jsonl",
        train=settings,
        chain=WeightSettings(fsync=False, dtype="bfloat16"),
        steps=2,
        device=DEVICE,
    )
    config.batches.mkdir()
    for step in range(1, 4):
        made = replace(batch(("rl", "ref_kl", "hint_kl"), seed=step, step=step), ref_logprobs=None)
        made.save(batch_path(config.batches, step))
    Worker(config).run()
    Worker(config.model_copy(update={"steps": 3})).run()
    follower = Follower(str(tmp_path / "weights"))
    follower.advance()
    published = assemble(follower.image)
    held = load_checkpoint(tmp_path / "checkpoints" / "step-000003").model
    assert follower.version == 3 and published.keys() == held.keys()
    assert all(torch.equal(published[name], held[name].bfloat16()) for name in held)


def test_a_directory_opens_on_a_gpu(policy_directory: Path):
    policy = load_policy(policy_directory, device=DEVICE, dtype=torch.bfloat16)
    assert policy.decoder.device.type == DEVICE and policy.mtp is not None and policy.mtp.norm.device.type == DEVICE
    exact = load_decoder(policy_directory, device="cpu")
    assert torch.equal(exact.embed.bfloat16(), policy.decoder.embed.cpu())


def test_reference_log_probabilities_are_those_of_a_cpu():
    made = replace(batch(("ref_kl",)), ref_logprobs=None)
    filled = [Reference(random_decoder(device=device), TrainSettings()).fill(made) for device in ("cpu", DEVICE)]
    np.testing.assert_allclose(filled[1].ref_logprobs, filled[0].ref_logprobs, atol=1e-4)


def test_distillation_of_a_draft_head_is_that_of_a_cpu():
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 97, (3, 20)))
    found = []
    for device in ("cpu", DEVICE):
        decoder, head = random_decoder(device=device).requires_grad_(False), MtpHead(DENSE, seed=1, device=device)
        weights = torch.ones(tokens.shape, device=device)
        loss, _ = distill(decoder, head, tokens.to(device), weights, denominator=60.0)
        found.append((loss, {name: p.grad.cpu() for name, p in head.named_parameters() if p.grad is not None}))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, atol=1e-4, rtol=1e-3)


# ---- engine ----


@asynccontextmanager
async def opened(decoder: Decoder, device: str, *, mtp: MtpHead | None = None, **values: Any):
    settings = EngineSettings.model_validate({"native": "off", "pack": "off", "prefill_tokens": 16, **values})
    engine = LocalEngine(copy.deepcopy(decoder), settings=settings, device=device, mtp=copy.deepcopy(mtp))
    try:
        yield engine
    finally:
        await engine.close()


SAMPLINGS = [
    Sampling(max_tokens=40, temperature=0.0),
    Sampling(max_tokens=40, seed=1),
    Sampling(max_tokens=25, seed=2, temperature=0.7, top_p=0.9, top_k=20, top_logprobs=3),
    Sampling(max_tokens=33, seed=3, min_p=0.02, logit_bias={5: 2.0, 9: -3.0}, raw_logprobs=True),
    Sampling(max_tokens=33, seed=4, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3),
]


async def sampled(decoder: Decoder, device: str, **values: Any) -> list[Completion]:
    prompts = np.random.default_rng(1).integers(0, 97, (len(SAMPLINGS), 50)).tolist()
    prompts = [prompt[: 10 + 9 * i] for i, prompt in enumerate(prompts)]
    async with opened(decoder, device, **values) as engine:
        return list(
            await asyncio.gather(
                *(engine.generate(p, s, session=str(i)) for i, (p, s) in enumerate(zip(prompts, SAMPLINGS)))
            )
        )


@pytest.mark.parametrize(
    "config, values",
    [
        (DENSE, {}),
        (DENSE, {"graphs": True}),
        (DENSE, {"graphs": True, "length_step": 16}),
        (DENSE, {"speculate": "ngram", "speculate_running": 8}),
        (DENSE, {"speculate": "mtp", "speculate_running": 8}),
        (LLAMA, {"graphs": True}),
        (MOE, {}),
    ],
    ids=["plain", "graphs", "graphs-growing", "ngram", "mtp", "llama-graphs", "moe"],
)
def test_an_engine_samples_what_it_samples_on_a_cpu(config, values):
    if values.get("graphs") and DEVICE == "cpu":
        pytest.skip("graphs need a GPU")
    decoder = random_decoder(config)
    head = MtpHead(config, seed=3) if values.get("speculate") == "mtp" else None
    expected = asyncio.run(sampled(decoder, "cpu"))
    got = asyncio.run(sampled(decoder, DEVICE, mtp=head, **values))
    for one, other in zip(expected, got):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-3)
        assert (one.reports is None) == (other.reports is None)
        if one.reports is not None:
            assert [report.kept for report in one.reports] == [report.kept for report in other.reports]
        if config is MOE:
            assert np.array_equal(one.routes, other.routes)


@torch.no_grad()
def worst_gap(decoders: Sequence[Decoder], prompt: list[int], reply: Completion) -> float:
    """Largest difference from one full forward pass of the version that sampled each token."""
    tokens = torch.tensor([prompt + reply.tokens], device=decoders[0].device)
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    worst = 0.0
    for version in set(reply.versions):
        decoder = decoders[version]
        logp_TV = decoder.logits(decoder.forward(tokens, positions, causal_attend()))[0].log_softmax(-1)
        for i, (token, logprob, by) in enumerate(zip(reply.tokens, reply.logprobs, reply.versions)):
            if by == version:
                worst = max(worst, abs(float(logp_TV[len(prompt) + i - 1, token]) - logprob))
    return worst


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-3), ("bfloat16", 0.5)])
@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_weights_from_the_gpu_change_in_flight(dtype, tolerance, graphs):
    if graphs and DEVICE == "cpu":
        pytest.skip("graphs need a GPU")
    decoders = [random_decoder(seed=seed, device=DEVICE) for seed in range(3)]
    prompts = np.random.default_rng(2).integers(0, 97, (6, 30)).tolist()

    async def run() -> list[Completion]:
        async with opened(decoders[0], DEVICE, dtype=dtype, graphs=graphs) as engine:
            asked = [
                asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=150, seed=i)))
                for i, prompt in enumerate(prompts)
            ]
            for version in (1, 2):
                while engine.stats()["generated_tokens"] < 200 * version:
                    assert not any(task.done() for task in asked)
                    await asyncio.sleep(0.001)
                await engine.update_weights(version, hf_state(decoders[version]), kv="recompute")
            return list(await asyncio.gather(*asked))

    replies = asyncio.run(run())
    assert {version for reply in replies for version in reply.versions} == {0, 1, 2}
    assert max(worst_gap(decoders, prompt, reply) for prompt, reply in zip(prompts, replies)) < tolerance


def test_the_trainer_replays_the_experts_of_an_engine():
    """On the GPU that sampled: log-probabilities agree, with the experts that the engine chose."""
    decoder = random_decoder(MOE, device=DEVICE)
    prompts = np.random.default_rng(3).integers(0, 97, (4, 30)).tolist()

    async def run() -> list[Completion]:
        async with opened(decoder, DEVICE) as engine:
            return list(await asyncio.gather(*(engine.generate(p, Sampling(max_tokens=40)) for p in prompts)))

    rows = []
    for prompt, reply in zip(prompts, asyncio.run(run())):
        tokens = np.array(prompt + reply.tokens, np.int32)
        behaviour = np.full(len(tokens), np.nan, np.float32)
        behaviour[len(prompt) :] = reply.logprobs
        routes = np.concatenate((reply.prompt_routes, reply.routes))
        weights = {"rl": (~np.isnan(behaviour)).astype(np.float32)}
        rows.append(Row(tokens, weights, behaviour_logprobs=behaviour, routes=routes))
    made = pack(rows, id="b1", step=1, denominators={"rl": 100.0})
    metrics = Trainer(decoder, TrainSettings()).step(made)
    assert metrics["dlogp_max"] < 1e-3 and metrics["ess"] == pytest.approx(1.0, abs=1e-3)
