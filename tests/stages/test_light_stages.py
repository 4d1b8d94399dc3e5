"""Stages that run no network do not pay for one: torch takes seconds to import and 200 MB to hold."""

from __future__ import annotations

import sys

import pytest
from waiting import run_to_end


@pytest.mark.parametrize("stage", ["make_tasks", "corpus", "demonstrations", "rl", "evaluate"])
def test_torch_is_not_imported(stage: str) -> None:
    code = f"import sys, woodshed.stages.{stage}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = run_to_end([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
