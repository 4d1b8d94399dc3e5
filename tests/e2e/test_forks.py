"""A run with ``rl.forks``, through the real command line: trained, conserved, recorded token by token.

The policy of the smoke recipe may never run a failing test after an accepted edit, so the run may have no forks;
``tests/rl/test_forks.py`` has runs that certainly do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_runs import SMOKE, woodshed

from tests.chaos.records import (
    check_conservation,
    check_ledger,
    check_logprobs,
    check_tokens,
    check_weights,
    stored_trajectories,
    trained_on,
)
from woodshed.record.jsonl import read_jsonl
from woodshed.sandbox.backends.namespace.backend import probe_namespace

pytestmark = pytest.mark.slow

SETTINGS = ('rl.algorithm="tree"', "rl.forks.count=2", "evaluate.baselines=false")


def test_a_run_with_forks_conserves_its_rollouts(tmp_path: Path) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    root = tmp_path / "run"
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    done = woodshed(tmp_path, "run", str(SMOKE), "--out", root, *options)
    assert done.returncode == 0, done.stderr
    for check in (check_ledger, check_conservation, check_tokens, check_logprobs, check_weights):
        check(root)
    assert set(stored_trajectories(root).values()) == {1}, "stored twice"

    everyone = {t.id: t for t in trained_on(root)}
    forks = [t for t in everyone.values() if t.fork is not None]
    rollouts = json.loads((root / "summary.json").read_text())["rollouts"]
    assert rollouts["error"] == "" and rollouts["undecided"] == 0 and rollouts["forks"] >= len(forks)
    assert rollouts["dispatched"] == rollouts["trained"] + sum(rollouts["dropped"].values())
    for fork in forks:
        assert fork.fork is not None and fork.id.startswith(f"{fork.fork.parent}.f")
        if fork.status == "infra_error":
            continue
        parent, shared = everyone[fork.fork.parent], fork.fork.tokens
        ours, theirs = fork.segments[0], parent.segments[fork.fork.segment]
        assert ours.tokens[:shared].tolist() == theirs.tokens[:shared].tolist() and theirs.sampled[:shared].any()
        assert not ours.sampled[:shared].any() and ours.sampled[shared], "the first own token follows the state"
    lines = read_jsonl(root / "metrics" / "rollouts.jsonl")
    assert sum(line["forks"] for line in lines) <= sum(t.status != "infra_error" for t in forks)
