import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.state import hf_state, load_hf_state
from woodshed.train.batch import Sequence, TrainBatch, pack
from woodshed.train.checkpoint import CheckpointError, latest_checkpoint, load_checkpoint, save_checkpoint, steps
from woodshed.train.loss import TokenStats
from woodshed.train.metrics_log import MetricsLog
from woodshed.train.settings import ImportanceSettings, OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer, summarise

from .conftest import CONFIG, MOE

MUON = TrainSettings(optimizer=OptimizerSettings(kind="muon"), schedule=ScheduleSettings(warmup_steps=2))


def weights(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in decoder.named_parameters()}


def assert_bitwise(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_loss_falls_on_repeated_text(decoder: Decoder) -> None:
    tokens = np.tile(np.arange(5, dtype=np.int32), 6)
    weight = (np.arange(30) > 0).astype(np.float32)
    rows = [Sequence(tokens, {"ce": weight})] * 4
    trainer = Trainer(decoder, TrainSettings(optimizer=OptimizerSettings(kind="muon", lr=2e-2)))
    losses = [
        trainer.step(pack(rows, id=str(s), step=s, denominators={"ce": 4.0 * 29}))["loss_ce"] for s in range(1, 41)
    ]
    assert losses[0] == pytest.approx(np.log(61), rel=0.05)
    assert losses[-1] < 0.2


def test_reward_raises_the_probability_of_what_was_rewarded(decoder: Decoder, make_batch) -> None:
    settings = TrainSettings(
        schedule=ScheduleSettings(warmup_steps=0),
        importance=ImportanceSettings(mode="off"),
        optimizer=OptimizerSettings(lr=1e-3),
    )
    trainer = Trainer(decoder, settings)
    batch = make_batch(parts=("rl",))
    before = trainer.step(batch)
    after = trainer.step(batch)
    # The part is -sum w logp: it falls exactly when rewarded tokens become likelier than punished ones.
    assert after["loss_rl"] < before["loss_rl"]


def test_how_often_the_engine_chose_other_experts_is_a_metric(make_batch) -> None:
    """Experts that a policy itself would choose differ nowhere; those of another policy as often as a forward says."""
    batch = make_batch(parts=("ce",))
    shares = {}
    for ratio in (0.0, 1.0):
        for seed in (2, 3):
            chosen = []
            for start, end in pairwise(batch.offsets.tolist()):
                tokens, sink = torch.from_numpy(batch.tokens[start:end].astype(np.int64))[None], list[torch.Tensor]()
                with torch.no_grad():
                    Decoder(MOE, seed=seed)(tokens, torch.arange(end - start)[None], causal_attend(), route_sink=sink)
                chosen.append(torch.stack(sink, -2)[0].numpy())
            batch.routes = np.concatenate(chosen)
            metrics = Trainer(Decoder(MOE, seed=2), TrainSettings(replay_ratio=ratio)).step(batch)
            shares[ratio, seed] = metrics["replay_differs_share"], metrics["replay_refused_share"]
    assert shares[0.0, 2] == shares[1.0, 2] == (0, 0)
    assert shares[0.0, 3][0] > 0.1 and shares[0.0, 3][1] == 0
    assert shares[1.0, 3][0] == shares[1.0, 3][1] > 0.1
    batch.routes = None
    assert "replay_differs_share" not in Trainer(Decoder(MOE, seed=2), TrainSettings()).step(batch)


def test_metrics_of_an_on_policy_batch_with_a_known_gap(decoder: Decoder, make_batch) -> None:
    batch = make_batch(parts=("rl",), step=5)
    batch.versions[batch.versions >= 0] = 2
    metrics = Trainer(decoder, TrainSettings()).step(batch)
    assert metrics["staleness_mean"] == metrics["staleness_max"] == 2
    assert metrics["trained_tokens"] == (batch.weights["rl"] != 0).sum()
    assert 0 < metrics["ess"] <= 1 and metrics["k3"] > 0 and metrics["masked_share"] == 0
    assert metrics["dlogp_mean"] <= metrics["dlogp_p99"] <= metrics["dlogp_max"]
    assert metrics["grad_norm"] > 0 and 0 < metrics["entropy"] <= np.log(61) + 1e-3
    assert metrics["lr"] == pytest.approx(3e-4 / 5)


def test_rows_that_begin_alike_are_counted(decoder: Decoder) -> None:
    """Two rollouts in three rows of 24 tokens, of which all begin with the same 20."""
    weight = np.zeros(24, np.float32)
    weight[22:] = 1
    rows = [
        Sequence(np.r_[np.arange(20), at, 1, 2, 3].astype(np.int32), {"ce": weight}, trajectory=name)
        for at, name in ((21, "a"), (22, "a"), (23, "b"))
    ]
    metrics = Trainer(decoder, TrainSettings()).step(pack(rows, id="b", step=1, denominators={"ce": 6.0}))
    assert (metrics["rollouts"], metrics["sequences"]) == (2, 3)
    assert metrics["tokens"] == 20 + 3 * 3 and metrics["spared_share"] == 40 / (3 * 23), "the last is only a target"


def test_clipping_scales_the_gradient_only(make_batch) -> None:
    """With plain AdamW at its first step the update does not depend on the gradient's scale; Muon's never does."""
    batch, results = make_batch(), []
    for clip in (0.0, 1e-3):
        decoder = Decoder(CONFIG, seed=1)
        metrics = Trainer(decoder, TrainSettings(clip_norm=clip, optimizer=OptimizerSettings(eps=1e-30))).step(batch)
        results.append((metrics["grad_norm"], weights(decoder)))
    assert results[0][0] == results[1][0] > 1e-3
    for name, value in results[0][1].items():
        torch.testing.assert_close(value, results[1][1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [0.0, 1e-3, 1e3])
def test_the_optimizer_gets_the_clipped_gradient(decoder: Decoder, make_batch, clip: float) -> None:
    """After the first step of AdamW the first moment is (1 - beta1) times the gradient."""
    trainer = Trainer(decoder, TrainSettings(clip_norm=clip))
    norm = trainer.step(make_batch())["grad_norm"]
    moments = [value.double() for name, value in trainer.state()[0].items() if name.endswith(".exp_avg")]
    found = torch.cat([moment.flatten() for moment in moments]).norm() / 0.1
    assert float(found) == pytest.approx(min(norm, clip or np.inf), rel=1e-4) and 1e-3 < norm < 1e3


@pytest.mark.parametrize("broken", [False, True])
def test_steps_without_signal_or_with_a_broken_gradient_change_nothing(
    decoder: Decoder, make_batch, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(decoder, TrainSettings())
    before = weights(decoder)
    batch = pack([], id="e", step=1, denominators={"rl": 1.0})
    if broken:
        batch = make_batch(parts=("ce",))
        batch.weights["ce"] *= np.float32(1e38)
        batch.denominators["ce"] = 1e-38
    metrics = trainer.step(batch)
    assert metrics["skipped"] == 1.0 and trainer.step_count == 1
    assert_bitwise(before, weights(decoder))
    assert ("gradient norm" in caplog.text) == broken
    assert trainer.step(make_batch(step=2))["skipped"] == 0.0
    assert all(torch.isfinite(p).all() for p in decoder.parameters())


@pytest.mark.parametrize("settings", [TrainSettings(), MUON])
def test_resume_is_bitwise_equal_to_going_on(tmp_path: Path, make_batch, settings: TrainSettings) -> None:
    trainer = Trainer(Decoder(CONFIG, seed=1), settings)
    for s in (1, 2):
        trainer.step(make_batch(seed=s, step=s))
    save_checkpoint(tmp_path, 2, hf_state(trainer.decoder), *trainer.state())
    again = Trainer(Decoder(CONFIG, seed=99), settings)
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.step == 2
    load_hf_state(again.decoder, checkpoint.model)
    again.load_state(checkpoint.optimizer, checkpoint.state)
    for s in (3, 4):
        left, right = trainer.step(make_batch(seed=s, step=s)), again.step(make_batch(seed=s, step=s))
        assert {k: v for k, v in left.items() if k != "seconds"} == {k: v for k, v in right.items() if k != "seconds"}
    assert_bitwise(weights(trainer.decoder), weights(again.decoder))


def test_damaged_checkpoints_are_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {"w": torch.arange(6.0)}
    for step in (1, 2, 3, 4):
        save_checkpoint(tmp_path, step, state, {}, {"n": step}, keep=3)
    assert steps(tmp_path) == [2, 3, 4]
    (tmp_path / ".step-000005.tmp").mkdir()
    model = tmp_path / "step-000004" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    (tmp_path / "step-000003" / "state.json").unlink()
    with caplog.at_level(logging.WARNING):
        checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.step == 2 and checkpoint.state["n"] == 2
    assert torch.equal(checkpoint.model["w"], state["w"])
    assert "step-000004" in caplog.text and "step-000003" in caplog.text
    with pytest.raises(CheckpointError, match="checksum"):
        load_checkpoint(tmp_path / "step-000004")
    assert latest_checkpoint(tmp_path / "none") is None


def test_metrics_log_has_one_line_per_step(tmp_path: Path) -> None:
    path = tmp_path / "m" / "trainer.jsonl"
    log = MetricsLog(path)
    assert log.append({"step": 1}) and log.append({"step": 2}) and not log.append({"step": 2})
    with open(path, "a") as file:
        file.write('{"step": 3, "lo')
    log = MetricsLog(path)
    assert log.last_step == 2 and not log.append({"step": 1}) and log.append({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_curve_equals_transformers_with_torch_adamw(make_batch) -> None:
    """An independent model, loss and optimizer: the same batches give the same losses."""
    transformers = pytest.importorskip("transformers")
    decoder = Decoder(CONFIG, seed=1)
    peer = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**CONFIG.to_hf()))
    peer.load_state_dict(hf_state(decoder), strict=False)
    peer.tie_weights()
    settings = TrainSettings(optimizer=OptimizerSettings(lr=3e-3), schedule=ScheduleSettings(warmup_steps=0))
    trainer = Trainer(decoder, settings)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(1, 6):
        batch: TrainBatch = make_batch(seed=step, step=step, parts=("ce",))
        batch.weights["ce"] = (batch.weights["ce"] != 0).astype(np.float32)
        batch.denominators["ce"] = float(batch.weights["ce"].sum())
        ours = trainer.step(batch)["loss_ce"]
        total = torch.zeros(())
        for start, size in zip(batch.offsets, batch.lengths):
            tokens = torch.from_numpy(batch.tokens[start : start + size].astype(np.int64))[None]
            logits = peer(tokens).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum")
        theirs = total / batch.denominators["ce"]
        optimizer.zero_grad()
        theirs.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        assert ours == pytest.approx(float(theirs.detach()), rel=2e-5)


def test_statistics_of_the_ratio() -> None:
    dlogp = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    importance = (torch.arange(1000) % 4).float()
    found = summarise(TokenStats(dlogp=[dlogp[:300], dlogp[300:]], importance=[importance]))
    x = dlogp.double().numpy()
    expected = {
        "dlogp_mean": np.abs(x).mean(),
        "dlogp_p99": np.quantile(np.abs(x), 0.99, method="higher"),
        "dlogp_max": np.abs(x).max(),
        "k3": (np.exp(x) - 1 - x).mean(),
        "ess": np.exp(x).sum() ** 2 / (1000 * np.exp(2 * x).sum()),
        "masked_share": 0.25,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    for percent in (1, 50, 99):
        expected = np.quantile(np.exp(dlogp.double().numpy()), percent / 100, method="higher")
        assert found[f"ratio_p{percent}"] == pytest.approx(expected, rel=1e-12)
