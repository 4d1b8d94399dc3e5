"""The draft head of a stage that was killed after its last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.stages.test_solved import run_with
from woodshed.recipe.load import load_recipe
from woodshed.stages import mtp
from woodshed.stages.examples import Example, save_examples


class Killed(BaseException):
    """Ends the first start."""


def test_the_figures_of_the_last_step_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise Killed

    run = run_with(tmp_path)
    run.policy("rl").rename(run.policy("sft"))
    tokens = np.random.default_rng(0).integers(0, 60, 24).astype(np.int32)
    save_examples(run.examples(), [Example(tokens, (np.arange(24) > 0).astype(np.float32))])
    recipe = load_recipe("smoke", ["learn.mtp={steps=2, batch_tokens=16}", "policy.device='cpu'"])
    monkeypatch.setattr(mtp, "Every", lambda seconds: lambda: True)
    with monkeypatch.context() as first:
        first.setattr(mtp, "save_policy", killed)
        with pytest.raises(Killed):
            mtp.distill_head(recipe, run)
    mtp.distill_head(recipe, run)
    assert run.read_result_of("mtp")["loss"] > 0
