"""Stages that run no network do not pay for one: torch takes seconds to import and 200 MB to hold."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("stage", ["stage_tasks", "stage_corpus", "stage_demonstrations", "stage_rollouts"])
def test_torch_is_not_imported(stage: str) -> None:
    code = f"import sys, woodshed.learn.{stage}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
