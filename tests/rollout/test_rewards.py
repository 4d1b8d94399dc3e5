"""Reward terms: from the recipe's settings to the sum that a group is compared by."""

from pathlib import Path

import pytest

from woodshed.recipe.load import load_recipe
from woodshed.record.trajectory import Effort, Outcome, ToolEvent
from woodshed.rollout.rewards.effort import effort_cost
from woodshed.stages.arena import shaped_reward

PLAIN = """name = "plain"
[harness]
output = { separator = "" }
"""
RECIPE = """
name = "terms"
[harness]
output = { separator = "" }
[rl.rewards]
outcome = 2.0
invalid_call = 0.05
effort = 0.5
effort_k = 2.0
effort_q = 0.3
effort_weights = { turns = 0.2, tool_calls = 0.0, tool_call_tokens = 0.01 }
unfinished_todos = 0.1
"""


def test_every_term_is_reached_from_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "terms.toml").write_text(RECIPE)
    reward = shaped_reward(load_recipe(tmp_path / "terms.toml").rl.rewards)
    todos = [{"id": "1", "status": "completed"}, {"id": "2", "status": "pending"}]
    events = [ToolEvent(0, "todo_write", {"todos": todos, "merge": False}, "")]
    effort = Effort(turns=3, tool_calls=40, tool_call_tokens=50, invalid_calls=2)
    terms = reward(Outcome(resolved=True), effort, events)
    assert terms == {
        "outcome": 2.0,
        "invalid_call": pytest.approx(-0.1),
        "effort": pytest.approx(-0.5 * effort_cost(0.2 * 3 + 0.01 * 50, k=2.0, q=0.3)),
        "unfinished_todos": pytest.approx(-0.05),
    }
    assert reward(Outcome(resolved=False), effort, [])["unfinished_todos"] == 0


def test_a_recipe_that_names_no_terms_rewards_the_outcome_alone(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(PLAIN)
    reward = shaped_reward(load_recipe(tmp_path / "plain.toml").rl.rewards)
    assert reward(Outcome(resolved=True), Effort(turns=9, invalid_calls=3), []) == {"outcome": 1.0}
