"""``woodshed run`` with another program for its agent: from nothing to a report, trained on what the gateway saw."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from real_runs import SMOKE, woodshed

from tests.e2e.random_policy import random_policy
from woodshed.policy.formats import get_format
from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore

pytestmark = pytest.mark.slow

AGENT = Path(__file__).parent.parent / "program_agent.py"
PROGRAM = """
[harness]
limits = { turns = 5, sampled_tokens = 80, turn_tokens = 24, wall_seconds = 60.0 }
tools = ["read_file", "edit_line", "run_tests", "finish"]
output = { separator = "" }

[harness.program]
command = "agent $(( $(od -An -N1 -tu1 /dev/urandom) % 4 + 1 ))"
folder = "FOLDER"
"""


def recipe(folder: Path) -> Path:
    """The smoke recipe with another agent, another chat format and no demonstrations.

    A policy of random weights says nothing that is a call. How often the agent tries makes the difference in effort.
    """
    (folder / "agent/bin").mkdir(parents=True)
    shutil.copy(AGENT, folder / "agent/bin/agent")
    (folder / "agent/bin/agent").chmod(0o755)
    text = SMOKE.read_text()
    head, _, rest = text.partition("[harness]")
    text = head + PROGRAM.replace("FOLDER", str(folder / "agent")) + "\n[rl]" + rest.partition("[rl]")[2]
    start = random_policy(folder / "start", get_format("hermes"))
    text = text.replace("[policy]", f'[policy]\nsource = "{start}"\nformat = "hermes"')
    text = text.replace("{ episodes = 100, hinted = 1.0 }", "{ episodes = 0 }")
    text = text.replace("baselines = true", "baselines = false").replace("[0.3, 1.0]", "[1.0]")
    path = folder / "program.toml"
    path.write_text(text)
    return path


def test_a_run_trains_another_agent(tmp_path: Path) -> None:
    root = tmp_path / "run"
    flags = ("--set", "rl.steps=2", "--set", "rl.mode=sync")
    done = woodshed(tmp_path, "run", recipe(tmp_path), "--out", root, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no demonstrations: the policy as it is" in done.stdout
    store = TrajectoryStore(root / "trajectories")
    episodes = list(store)
    store.close()
    assert len(episodes) == 2 * 4 * 2 + 2 * 2 * 4
    assert {len(episode.segments) for episode in episodes} <= {1, 2, 3, 4}
    for episode in episodes:
        assert episode.status == "submitted" and not episode.error, episode.error
        assert episode.effort.turns >= 1 and episode.sampled_tokens == episode.effort.sampled_tokens > 0
        assert episode.messages[0]["role"] == "user" and episode.outcome is not None
    trained = [row for row in read_jsonl(root / "metrics/trainer.jsonl") if "trained_tokens" in row]
    assert len(trained) == 2 and sum(row["trained_tokens"] for row in trained) > 0
    assert max(row["dlogp_max"] for row in trained if "dlogp_max" in row) < 1e-3, "not the tokens that were sampled"
    assert (root / "report.html").stat().st_size > 10_000


def test_a_program_that_does_not_exist_ends_the_run_with_what_it_said(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    path.write_text(path.read_text().replace('"agent $((', '"agnet $(('))
    done = woodshed(tmp_path, "run", path, "--out", tmp_path / "run")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "harness.program had no reply from the policy: exit code 127" in said and "agnet" in said
