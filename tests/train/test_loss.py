"""Gradients against float64 autograd over the full logits, and what must not change them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.train.batch import BatchError, Sequence, TrainBatch, pack
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.parts import Tokens, ref_kl
from woodshed.train.settings import ClipSettings, ImportanceSettings, KlSettings, TrainSettings
from woodshed.train.trainer import summarise

from .conftest import CONFIG, MOE


def gradients(decoder: Decoder, batch: TrainBatch, settings: TrainSettings) -> tuple[dict[str, Tensor], TokenStats]:
    decoder.zero_grad()
    used, seen = weighted(batch), TokenStats()
    lengths = input_lengths(batch, used)
    for rows in micro_batches(batch, lengths, settings.microbatch_tokens):
        micro = collate(batch, rows, lengths, used, decoder.device)
        backward(decoder, micro, batch.denominators, settings, seen)
    return {n: p.grad.clone() for n, p in decoder.named_parameters() if p.grad is not None}, seen


def clipped(ratio: Tensor, weight: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * weight, torch.clip(ratio, 1 - low, 1 + high) * weight)


def reference(
    decoder: Decoder,
    batch: TrainBatch,
    coefficient=torch.ones_like,
    routes: bool = False,
    settings: TrainSettings | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """float64 autograd, one sequence at a time, no padding, no chunks. The sum is what is differentiated, so with k1 it
    is not what is reported."""
    settings = settings or TrainSettings()
    twin = Decoder(decoder.config, seed=None, dtype=torch.float64)
    twin.load_state_dict({k: v.double() for k, v in decoder.state_dict().items()})
    total = torch.zeros((), dtype=torch.float64)
    for i, start in enumerate(batch.offsets[:-1]):
        span = slice(start, start + batch.lengths[i])
        tokens = torch.from_numpy(batch.tokens[span].astype(np.int64))
        replay = torch.from_numpy(batch.routes[span].astype(np.int64))[None] if routes else None
        hidden = twin.forward(tokens[None], torch.arange(len(tokens))[None], causal_attend(), routes=replay)
        logp = F.log_softmax(F.linear(hidden[0, :-1], twin.head_weight), -1)
        logp = logp[torch.arange(len(tokens) - 1), tokens[1:]]
        behaviour = torch.from_numpy(batch.behaviour_logprobs[span][1:]).double()
        for part, stream in batch.weights.items():
            weight = torch.from_numpy(stream[span][1:]).double()
            ratio = coefficient((logp.detach() - behaviour).nan_to_num().exp())
            if part == "rl":
                value = -weight * ratio * logp
            elif part == "ce":
                value = -weight * logp
            elif part == "ppo":
                ratio = (logp - behaviour.nan_to_num()).exp()
                value = clipped(ratio, weight, settings.clip.low, settings.clip.high)
            elif part == "gspo":  # the published objective, which weighs all tokens of a sequence alike
                used = weight != 0
                whole = (logp - behaviour)[used].mean().exp()
                value = clipped(whole, weight[used], settings.sequence_clip.low, settings.sequence_clip.high)
            else:
                gap = logp - torch.from_numpy(batch.ref_logprobs[span][1:]).double().nan_to_num()
                kinds = {"k1": gap.detach() * logp, "k2": gap**2 / 2, "k3": torch.exp(-gap) - 1 + gap}
                value = weight * ratio * kinds[settings.kl.estimator]
            total = total + value.sum() / batch.denominators[part]
    total.backward()
    return {n: p.grad for n, p in twin.named_parameters()}, total.detach()


def assert_close(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        scale = value.abs().max().clamp_min(1e-6)
        assert (got[name].double() - value.double()).abs().max() / scale < tolerance, name


@pytest.mark.parametrize(
    ("importance", "coefficient"),
    [
        (ImportanceSettings(mode="off"), torch.ones_like),
        (ImportanceSettings(mode="mask", low=0.8, high=1.3), lambda r: torch.where((r >= 0.8) & (r <= 1.3), r, 0)),
        (ImportanceSettings(mode="truncate", cap=1.1), lambda r: r.clamp(max=1.1)),
    ],
)
def test_gradient_and_loss_equal_float64_autograd(decoder, make_batch, importance, coefficient) -> None:
    batch = make_batch()
    for estimator in ("k1", "k2", "k3"):
        settings = TrainSettings(importance=importance, kl=KlSettings(estimator=estimator))
        got, seen = gradients(decoder, batch, settings)
        expected, loss = reference(decoder, batch, coefficient, settings=settings)
        assert_close(got, expected)
        if estimator != "k1":
            assert sum(seen.loss.values()) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize("elements", [61, 200, 1 << 20])
def test_clipped_surrogates_equal_float64_autograd(decoder, make_batch, elements) -> None:
    """Of tokens (PPO, GRPO) and of whole sequences (GSPO), where some are clipped on either side and some are not."""
    for part, edges in (("ppo", {"clip": ClipSettings(low=0.2, high=0.3)}), ("gspo", {})):
        settings = TrainSettings(logits_elements=elements, microbatch_tokens=40, **edges)
        if part == "gspo":
            settings = settings.model_copy(update={"sequence_clip": ClipSettings(low=0.1, high=0.1)})
        batch = make_batch(parts=(part,), sizes=(9, 3, 17, 12, 5, 30, 8, 11), spread=0.6)
        for i, start in enumerate(batch.offsets[:-1]):
            span = slice(start, start + batch.lengths[i])
            batch.weights[part][span] = np.where(batch.weights[part][span] != 0, (-1) ** i * (1 + i), 0)
        got, seen = gradients(decoder, batch, settings)
        expected, loss = reference(decoder, batch, settings=settings)
        assert_close(got, expected)
        assert seen.loss[part] == pytest.approx(float(loss), rel=1e-5)
        clipped_share = float((torch.cat(seen.importance) == 0).double().mean())
        assert 0 < clipped_share < 1


def test_kl_is_reported_as_k1(decoder, make_batch) -> None:
    batch = make_batch(parts=("ref_kl",))
    _, seen = gradients(decoder, batch, TrainSettings(importance=ImportanceSettings(mode="off")))
    logp = []
    for start, size in zip(batch.offsets, batch.lengths):
        tokens = torch.from_numpy(batch.tokens[start : start + size].astype(np.int64))
        hidden = decoder.forward(tokens[None], torch.arange(size)[None], causal_attend())
        log = decoder.logits(hidden[0]).log_softmax(-1)
        logp += [float("nan"), *log[:-1].gather(1, tokens[1:, None])[:, 0].tolist()]
    used = batch.weights["ref_kl"] != 0
    weight, gap = batch.weights["ref_kl"][used], np.array(logp)[used] - batch.ref_logprobs[used]
    assert summarise(seen)["kl"] == pytest.approx(gap.mean(), rel=1e-4) and abs(gap.mean()) > 1e-3
    assert seen.loss["ref_kl"] == pytest.approx((weight * gap).sum() / batch.denominators["ref_kl"], rel=1e-4)


@pytest.mark.parametrize(("divergence", "k1", "k3"), [(0.5, 1.0, 0.7183), (2.0, 4.0, 49.598), (4.5, 9.0, 8093.08)])
def test_variance_of_the_estimators_of_two_gaussians(divergence: float, k1: float, k3: float) -> None:
    """Why k1 is the default: Var(k1) = 2 KL, Var(k3) = exp(2 KL) - 1 - 2 KL for unit Gaussians that far apart."""
    mean = np.sqrt(2 * divergence)
    x = np.linspace(-14, 14, 400_001) + mean  # the policy lies at `mean`, the reference at 0
    density = np.exp(-((x - mean) ** 2) / 2) / np.sqrt(2 * np.pi)
    logp, ref = -((x - mean) ** 2) / 2, -(x**2) / 2
    for estimator, variance in (("k1", k1), ("k3", k3)):
        tokens = Tokens(*(torch.from_numpy(a) for a in (logp, np.ones_like(x), logp, ref, np.ones_like(x), logp)))
        value = ref_kl(tokens, TrainSettings(kl=KlSettings(estimator=estimator))).numpy()
        expected = np.trapezoid(density * value, x)
        assert expected == pytest.approx(divergence, rel=1e-4), "unbiased"
        assert np.trapezoid(density * (value - expected) ** 2, x) == pytest.approx(variance, rel=1e-3)


def test_mask_really_masks(decoder, make_batch) -> None:
    batch = make_batch(parts=("rl",), spread=2.0)
    _, seen = gradients(decoder, batch, TrainSettings())
    ratio = torch.cat(seen.dlogp).exp()
    outside = (ratio < 0.2) | (ratio > 5)
    assert 0 < outside.sum() < len(ratio)
    torch.testing.assert_close(torch.cat(seen.importance), torch.where(outside, 0.0, ratio))


@pytest.mark.parametrize("budget", [1, 20, 40, 10_000])
@pytest.mark.parametrize("elements", [61, 400, 1 << 20])
def test_micro_batches_chunks_and_padding_do_not_change_the_gradient(decoder, make_batch, budget, elements) -> None:
    batch = make_batch()
    whole, seen_whole = gradients(decoder, batch, TrainSettings())
    split, seen = gradients(decoder, batch, TrainSettings(microbatch_tokens=budget, logits_elements=elements))
    assert_close(split, whole, 1e-5)
    assert seen.trained_tokens == seen_whole.trained_tokens
    assert torch.cat(seen.entropy).mean() == pytest.approx(float(torch.cat(seen_whole.entropy).mean()), rel=1e-5)


def test_what_follows_the_last_weighted_token_is_cut_exactly(decoder) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 61, 20).astype(np.int32)
    weight = np.zeros(20, np.float32)
    weight[[4, 7]] = 1
    grads = []
    for size in (20, 8):
        batch = pack([Sequence(tokens[:size], {"ce": weight[:size]})], id="", step=1, denominators={"ce": 2.0})
        assert input_lengths(batch, weighted(batch)).tolist() == [7]
        grads.append(gradients(decoder, batch, TrainSettings())[0])
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name], grads[1][name], rtol=0, atol=0)


def test_logits_never_exceed_the_chunk(decoder, make_batch, monkeypatch) -> None:
    sizes, original = [], decoder.logits
    monkeypatch.setattr(decoder, "logits", lambda h: sizes.append(h.shape[0] * 61) or original(h))
    gradients(decoder, make_batch(), TrainSettings(logits_elements=500))
    assert max(sizes) <= 500 and len(sizes) > 3


def test_entropy_against_softmax(decoder, make_batch) -> None:
    batch = make_batch(sizes=(12,), parts=("ce",))
    _, seen = gradients(decoder, batch, TrainSettings())
    tokens = torch.from_numpy(batch.tokens.astype(np.int64))[None]
    logits = decoder.logits(decoder.forward(tokens, torch.arange(12)[None], causal_attend()))[0, :-1]
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(torch.cat(seen.entropy), expected, rtol=1e-5, atol=1e-5)


def test_k1_in_the_advantage_equals_k2_as_a_loss(decoder, make_batch) -> None:
    """composer-style KL: -(-beta k1) * logp with k1 detached has, sample by sample, the gradient of beta * k1^2 / 2."""
    base = make_batch(parts=("rl",))
    used, probe = base.weights["rl"] != 0, TokenStats()
    lengths = input_lengths(base, used)
    everything = np.arange(len(base))
    micro = collate(base, everything, lengths, used, decoder.device)
    backward(decoder, micro, base.denominators, TrainSettings(), probe)
    # Log-probabilities of the current policy, put where the behaviour policy's are: on-policy, ratio 1.
    base.behaviour_logprobs[micro.index_M] += torch.cat(probe.dlogp).numpy()
    beta = 0.3
    k1 = np.where(used, base.behaviour_logprobs - base.ref_logprobs, 0).astype(np.float32)
    in_advantage = pack_like(base, {"rl": -beta * k1}, {"rl": 7.0})
    as_loss = pack_like(base, {"ref_kl": np.where(used, beta, 0).astype(np.float32)}, {"ref_kl": 7.0})
    left, _ = gradients(decoder, in_advantage, TrainSettings())
    right, _ = gradients(decoder, as_loss, TrainSettings())
    assert_close(left, right, 1e-4)


def pack_like(base: TrainBatch, weights: dict, denominators: dict) -> TrainBatch:
    return TrainBatch(
        "x",
        1,
        base.tokens,
        base.lengths,
        weights,
        denominators,
        base.behaviour_logprobs,
        base.versions,
        base.trajectories,
        base.ref_logprobs,
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_expected_gradient_is_that_of_a_kl_and_not_the_zero_of_k1_as_a_loss(estimator) -> None:
    """Summed over the tokens of a distribution: k1 and k2 give the gradient of KL(pi, ref), k3 that of KL(ref, pi)."""
    rng = torch.Generator().manual_seed(4)
    logits = torch.randn(9, dtype=torch.float64, generator=rng).requires_grad_()
    ref = torch.randn(9, dtype=torch.float64, generator=rng).log_softmax(0)

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    logp = logits.log_softmax(0)
    pi, one = logp.detach().exp(), torch.ones_like(ref)
    tokens = Tokens(logp, pi, logp.detach(), ref, one, logp.detach())
    got = gradient(ref_kl(tokens, TrainSettings(kl=KlSettings(estimator=estimator))).sum())
    reverse, forward = (logp.exp() * (logp - ref)).sum(), (ref.exp() * (ref - logp)).sum()
    expected = gradient(forward if estimator == "k3" else reverse)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    trap = gradient((pi * (logp - ref)).sum())
    assert trap.abs().max() < 1e-15


def test_length_does_not_change_a_tokens_gradient(decoder) -> None:
    """The same tokens with the same weights, once followed by unweighted ones and once not, and batched with others."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 61, 30).astype(np.int32)
    weight = np.where(np.arange(30) < 6, 1, 0).astype(np.float32) * (np.arange(30) > 0)
    one = pack([Sequence(tokens, {"ce": weight})], id="", step=1, denominators={"ce": 5.0})
    two = pack(
        [Sequence(tokens[:6], {"ce": weight[:6]}), Sequence(tokens[::-1].copy(), {})],
        id="",
        step=1,
        denominators={"ce": 5.0},
    )
    assert_close(gradients(decoder, one, TrainSettings())[0], gradients(decoder, two, TrainSettings())[0], 1e-6)


def test_routes_are_replayed_and_the_router_learns(make_batch) -> None:
    decoder = Decoder(MOE, seed=2)
    batch = make_batch(parts=("rl", "ce"))
    rng = np.random.default_rng(0)
    pairs = np.array([[0, 1], [1, 3], [2, 0], [3, 2]], np.int16)
    batch.routes = pairs[rng.integers(0, 4, (len(batch.tokens), 2))]
    settings = TrainSettings(importance=ImportanceSettings(mode="off"), microbatch_tokens=30)
    got, _ = gradients(decoder, batch, settings)
    expected, _ = reference(decoder, batch, torch.ones_like, routes=True)
    assert_close(got, expected, 5e-5)
    free, _ = reference(decoder, batch, torch.ones_like)
    assert any((free[n] - expected[n]).abs().max() > 1e-4 for n in free)
    assert got["layers.0.experts.router"].abs().max() > 0


def test_unknown_parts_are_refused(decoder, make_batch) -> None:
    batch = make_batch(parts=("ce",))
    batch.weights["mtp"] = batch.weights["ce"]
    batch.denominators["mtp"] = 1.0
    with pytest.raises(BatchError, match="unknown loss part 'mtp'; known: rl, ppo, gspo, ce, ref_kl"):
        batch.check()
    batch = make_batch(parts=("ref_kl",))
    batch.ref_logprobs = None
    batch.check()
    with pytest.raises(BatchError, match="needs ref_logprobs"):
        gradients(decoder, batch, TrainSettings())


def test_small_config_is_what_the_tests_assume() -> None:
    assert CONFIG.vocab_size == MOE.vocab_size == 61
