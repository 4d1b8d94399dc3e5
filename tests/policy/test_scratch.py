"""Policies from scratch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from woodshed.policy.hf import load_policy, save_policy
from woodshed.policy.scratch import new_policy
from woodshed.policy.settings import PolicySettings


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "llama"])
def test_new_policies_save_and_load(family: str, tmp_path: Path) -> None:
    settings = PolicySettings.model_validate({"family": family, "num_layers": 2, "vocab_size": 300})
    policy = new_policy(settings, ["def f(x):\n    return x\n" * 20])
    assert policy.format.name == "compact" and policy.version == 0 and policy.config.family == family
    assert policy.stop_ids() == (policy.tokenizer.special_id("<end>"),)
    save_policy(policy, tmp_path / "p")
    again = load_policy(tmp_path / "p")
    assert again.config == policy.config and torch.equal(again.decoder.embed, policy.decoder.embed)


def test_the_default_size() -> None:
    policy = new_policy(PolicySettings(), [Path(__file__).read_text()])
    assert 0.85e6 < policy.decoder.num_parameters - policy.decoder.embed.numel() + 1280 * 128 < 1.0e6
