"""Expert routing and router replay against the formulas written out one token at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.moe import Experts, choose_experts, count_replay

CONFIG = DecoderConfig(
    vocab_size=60, d_model=16, num_layers=3, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=24, max_positions=32,
    family="qwen3_moe", num_experts=6, num_experts_per_tok=3, moe_d_ff=8, mlp_only_layers=(1,),
)  # fmt: skip


def layer(normalise: bool) -> Experts:
    experts = Experts(replace(CONFIG, norm_topk_prob=normalise))
    with torch.no_grad():
        for p in experts.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return experts


def by_hand(experts: Experts, x: Tensor, chosen: Tensor, normalise: bool) -> Tensor:
    out = []
    for row, ids in zip(x, chosen.tolist(), strict=True):
        logits = experts.router @ row
        weights = logits.exp() / logits.exp().sum()
        total = sum(weights[e] for e in ids) if normalise else 1.0
        y = torch.zeros_like(row)
        for e in ids:
            gate, up = (experts.gate_up[e] @ row).split(CONFIG.moe_d_ff)
            y = y + weights[e] / total * (experts.down[e] @ (F.silu(gate) * up))
        out.append(y)
    return torch.stack(out)


@pytest.mark.parametrize("normalise", [True, False])
def test_own_and_replayed_routes(normalise: bool) -> None:
    experts = layer(normalise)
    x = torch.randn(7, 16, generator=torch.Generator().manual_seed(3))
    y, chosen = experts(x)
    assert torch.equal(chosen, (x @ experts.router.T).topk(3).indices)
    assert torch.allclose(y, by_hand(experts, x, chosen, normalise), atol=1e-4)
    replay = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i))[:3] for i in range(7)])
    y, chosen = experts(x, replay)
    assert torch.equal(chosen, replay)
    assert torch.allclose(y, by_hand(experts, x, replay, normalise), atol=1e-4)


def test_the_gradient_reaches_the_router_through_replayed_routes() -> None:
    experts = layer(normalise=True)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    replay = torch.tensor([[0, 1, 2]]).expand(5, 3)
    experts(x, replay)[0].pow(2).sum().backward()
    got = experts.router.grad
    assert got is not None and got[:3].abs().min() > 0 and got[3:].abs().max() == 0
    exact = layer(normalise=True).double()
    by_hand(exact, x.double(), replay, True).pow(2).sum().backward()
    assert exact.router.grad is not None
    assert (got - exact.router.grad).abs().max() < 1e-5 * exact.router.grad.abs().max()


def reference_choice(scores: list[float], k: int, replay: list[int], ratio: float) -> list[int]:
    own = sorted(range(len(scores)), key=lambda e: -scores[e])[:k]
    threshold = ratio * scores[own[-1]]
    chosen: list[int] = []
    for e in replay:
        if e != -1 and e not in chosen and scores[e] >= threshold:
            chosen.append(e)
    return (chosen + [e for e in own if e not in chosen])[:k]


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("least", [-1, 0])
def test_choice_against_the_rule(ratio: float, k: int, least: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(200, 6, generator=generator)
    replay = torch.randint(least, 6, (200, k), generator=generator)
    chosen = choose_experts(scores, k, replay, ratio)
    expected = [reference_choice(s, k, r, ratio) for s, r in zip(scores.tolist(), replay.tolist(), strict=True)]
    assert chosen.tolist() == expected
    if ratio == 1.0:
        assert torch.equal(chosen.sort().values, scores.topk(k).indices.sort().values)


@pytest.mark.parametrize("ratio", [0.0, 0.9, 1.0])
def test_counts_of_replay_against_the_rule(ratio: float) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(300, 6, generator=generator)
    replay = torch.stack([torch.randperm(7, generator=generator)[:2] - 1 for _ in range(300)])
    asked = differs = unused = 0
    for row, routes in zip(scores.tolist(), replay.tolist(), strict=True):
        own, used = reference_choice(row, 2, [-1, -1], 0.0), reference_choice(row, 2, routes, ratio)
        asked += sum(e >= 0 for e in routes)
        differs += sum(e >= 0 and e not in own for e in routes)
        unused += sum(e >= 0 and e not in used for e in routes)
    counts = count_replay(scores, choose_experts(scores, 2, replay, ratio), replay)
    assert counts.tolist() == [asked, differs, unused] and differs
    assert unused == (0 if ratio == 0 else differs if ratio == 1 else unused) and unused <= differs


def test_bad_routes_are_refused() -> None:
    scores = torch.rand(4, 6)
    with pytest.raises(ValueError, match="expert 6"):
        choose_experts(scores, 2, torch.tensor([[0, 6]] * 4))
    with pytest.raises(ValueError, match="expert -2"):
        choose_experts(scores, 2, torch.tensor([[0, -2]] * 4))
    with pytest.raises(ValueError, match="shape"):
        choose_experts(scores, 2, torch.zeros(4, 3, dtype=torch.int64))


def test_routes_of_a_forward_replay_in_another_decoder() -> None:
    engine, trainer = Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    tokens = torch.arange(20).view(2, 10)
    positions = torch.arange(10).expand(2, 10)
    sink: list[Tensor] = []
    with torch.no_grad():
        first = engine(tokens, positions, causal_attend(), route_sink=sink)
        routes = torch.stack(sink, -2)
        assert routes.shape == (2, 10, 3, 3) and routes.dtype == torch.int16
        assert (routes[..., 1, :] == -1).all() and (routes[..., 0, :] >= 0).all()
        assert torch.equal(engine(tokens, positions, causal_attend(), routes=routes), first)
        own: list[Tensor] = []
        replayed: list[Tensor] = []
        plain = trainer(tokens, positions, causal_attend(), route_sink=own)
        trainer(tokens, positions, causal_attend(), routes=routes, route_sink=replayed)
        assert torch.equal(torch.stack(replayed, -2), routes) and not torch.equal(torch.stack(own, -2), routes)
        unknown = torch.full_like(routes, -1)
        assert torch.equal(trainer(tokens, positions, causal_attend(), routes=unknown), plain)
