"""Self-distillation of multi-token-prediction heads, against autograd and closed forms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.models import DENSE, MOE, decoder
from woodshed.policy.config import ConfigError
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.mtp import MtpHead, load_mtp, mtp_state, save_mtp
from woodshed.train.mtp import distill


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 97, (3, 12), generator=generator)
    weights = (torch.rand((3, 12), generator=generator) > 0.4).float()
    weights[2, 7:] = 0
    return tokens, weights


def reference(policy: Decoder, head: MtpHead, tokens: torch.Tensor, weights: torch.Tensor, depth: int) -> torch.Tensor:
    """The loss as its formula stands, position by position."""
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    with torch.no_grad():
        hidden = policy.forward(tokens, positions, causal_attend())
        teacher = policy.logits(hidden).log_softmax(-1)
    guess, loss = hidden, torch.zeros(())
    for d in range(1, depth + 1):
        before = torch.cat((torch.zeros_like(guess[:, :1]), guess[:, :-1]), 1)
        guess = head(policy, before, tokens, positions, causal_attend())
        student = policy.logits(guess).log_softmax(-1)
        for b in range(tokens.shape[0]):
            for i in range(d, tokens.shape[1]):
                kl = torch.nn.functional.kl_div(student[b, i], teacher[b, i], log_target=True, reduction="sum")
                loss = loss + weights[b, i] * kl
    return loss / depth / weights.sum()


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_value_and_gradient_are_those_of_autograd(config, depth: int) -> None:  # type: ignore[no-untyped-def]
    policy, head = decoder(config, sharpness=4.0), MtpHead(config, seed=2)
    policy.requires_grad_(False)
    tokens, weights = batch()
    total = float(weights.sum())
    expected = reference(policy, head, tokens, weights, depth)
    wanted = torch.autograd.grad(expected, list(head.parameters()))
    head.zero_grad()
    value, _ = distill(policy, head, tokens, weights, depth=depth, denominator=total, logits_elements=300)
    assert value == pytest.approx(expected.item(), rel=1e-5)
    for parameter, gradient in zip(head.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_neither_padding_nor_later_tokens_change_the_gradient() -> None:
    policy, head = decoder(sharpness=4.0).requires_grad_(False), MtpHead(DENSE, seed=2)
    tokens = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(4))
    weights = torch.zeros(1, 12)
    weights[:, 1:6] = 1
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 97
    found = []
    for given in (tokens, torch.nn.functional.pad(tokens, (0, 8)), other):
        head.zero_grad()
        padded = torch.nn.functional.pad(weights, (0, given.shape[1] - 12))
        distill(policy, head, given, padded, depth=2, denominator=5.0)
        found.append(torch.cat([p.grad.flatten() for p in head.parameters() if p.grad is not None]))
    assert torch.allclose(found[0], found[1], atol=1e-6)
    assert torch.allclose(found[0], found[2], atol=1e-6)


def test_nothing_flows_into_the_network_and_a_head_that_knows_has_no_loss() -> None:
    policy, (tokens, weights) = decoder(sharpness=4.0), batch()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}

    class Same(MtpHead):
        def forward(self, decoder, before, tokens, positions, attention_fn):  # type: ignore[no-untyped-def, override]
            return decoder.forward(tokens, positions, causal_attend()).detach() + 0 * self.norm

    value, agreed = distill(policy, Same(DENSE), tokens, weights, depth=2, denominator=float(weights.sum()))
    assert abs(value) < 1e-6
    assert agreed == pytest.approx(float(weights[:, 1:].sum() / weights.sum()))
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


def test_a_weight_before_which_no_hidden_state_exists_teaches_nothing() -> None:
    """Position 0 alone is weighed, as in a row whose only weight is that of its second token."""
    policy, head = decoder(sharpness=4.0).requires_grad_(False), MtpHead(DENSE, seed=2)
    weights = torch.zeros(1, 12)
    weights[0, 0] = 1
    assert distill(policy, head, batch()[0][:1], weights, denominator=1.0) == (0.0, 0.0)
    assert all(parameter.grad is None for parameter in head.parameters())


def test_a_head_learns_what_the_network_says_next() -> None:
    policy, head = decoder(sharpness=12.0), MtpHead(DENSE, seed=2)
    policy.requires_grad_(False)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=0.0)
    tokens = torch.randint(0, 97, (4, 12), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        losses.append(distill(policy, head, tokens, torch.ones(4, 12), denominator=48.0)[0])
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_on_disk(tmp_path: Path) -> None:
    head = MtpHead(MOE, seed=5)
    assert load_mtp(tmp_path, MOE, "cpu", torch.float32) is None
    save_mtp(head, tmp_path)
    again = load_mtp(tmp_path, MOE, "cpu", torch.float32)
    assert again is not None
    for name, tensor in mtp_state(head).items():
        assert torch.equal(tensor, mtp_state(again)[name])
    with pytest.raises(ConfigError, match=r"mtp\.safetensors: .* does not fit"):
        load_mtp(tmp_path, DENSE, "cpu", torch.float32)
    (tmp_path / "mtp.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="not a complete"):
        load_mtp(tmp_path, MOE, "cpu", torch.float32)
