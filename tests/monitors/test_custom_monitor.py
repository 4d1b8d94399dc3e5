"""Monitors by reference: checked when a recipe is loaded, treated like the built-in ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from woodshed.grading.settings import MonitorSettings
from woodshed.monitors import MonitoredEpisode, inspect, quarantined, watch
from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import ToolEvent, Trajectory

MONITOR = """
from woodshed.monitors import Finding


def sleeps(episode):
    for turn, command in episode.commands():
        if command.startswith("sleep"):
            yield Finding("whatever it says", turn, command)


def fails(episode):
    yield Finding("fails", 0, "first")
    raise KeyError("second")


def says_text(episode):
    return ["no finding"]


def without_evidence(episode):
    yield Finding("without_evidence", 3, None)


def evidence_of_bytes(episode):
    yield Finding("evidence_of_bytes", 3, b"sleep 9")


def turn_in_words(episode):
    yield Finding("turn_in_words", "third", "sleep 9")


def reads_a_missing_file(episode):
    open("/no/such/file")


def wants_more(episode, threshold):
    return ()


NUMBER = 7
"""
SLEEPS = "mine_monitors:sleeps"
TASK = Task(Path(), "org/t", "", TaskInfo(), {})
EPISODE = MonitoredEpisode(TASK, [ToolEvent(3, "run_command", {"command": "sleep 9"}, "")])


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of monitors outside the tree."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_monitors", raising=False)
    (tmp_path / "mine_monitors.py").write_text(MONITOR)


def recipe(folder: Path, monitors: str) -> Path:
    path = folder / "own.toml"
    harness = '[harness]\noutput = { separator = "" }\n'
    path.write_text(f'name = "own"\n{harness}\n[rl.monitors]\n{monitors}\n')
    return path


def trajectory() -> Trajectory:
    return Trajectory("i", "t", "g", "train", "h", "p", "submitted", rewards={"outcome": 1.0, "effort": -0.1})


@pytest.mark.parametrize("form", [f'"{SLEEPS}" = "fail"', f'custom = {{ "{SLEEPS}" = "fail" }}'])
def test_a_recipe_names_a_monitor_and_its_treatment(tmp_path: Path, form: str) -> None:
    loaded = load_recipe(recipe(tmp_path, f'terminal_only = "off"\n{form}'))
    settings = loaded.rl.monitors
    assert settings.custom == {SLEEPS: "fail"} and settings.treated("fail") == (SLEEPS,)
    assert settings.terminal_only == "off" and settings.special_casing == "flag"
    (tmp_path / "again.toml").write_text(dump_recipe(loaded))
    assert load_recipe(tmp_path / "again.toml") == loaded
    flagged = watch(trajectory(), EPISODE, settings, training=True)
    assert flagged.findings == [{"monitor": SLEEPS, "turn": 3, "evidence": "sleep 9"}]
    assert flagged.labels == {"flagged": SLEEPS}
    assert flagged.rewards == {"outcome": 1.0, "effort": -0.1, f"monitor_{SLEEPS}": -1.0}


@pytest.mark.parametrize("treatment", ["off", "flag", "quarantine"])
def test_the_other_treatments(treatment: str) -> None:
    settings = MonitorSettings.model_validate({SLEEPS: treatment})
    seen = watch(trajectory(), EPISODE, settings, training=True)
    assert bool(seen.findings) is (treatment != "off") and seen.rewards == trajectory().rewards
    assert quarantined(seen, settings) is (treatment == "quarantine")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"mine_monitors:snores" = "flag"', r"rl\.monitors\.mine_monitors:snores: .*cannot be loaded: AttributeError"),
        ('"mine_monitors:NUMBER" = "flag"', "it is no function of a MonitoredEpisode"),
        ('"mine_monitors:wants_more" = "flag"', "cannot be called with a MonitoredEpisode alone: .*threshold"),
        (f'"{SLEEPS}" = "shout"', "Input should be 'off', 'flag', 'quarantine' or 'fail'"),
        ('custom = { sleeps = "flag" }', "'sleeps' is not a reference such as 'my_module:my_function'"),
        ('special_casng = "flag"', r"rl\.monitors\.special_casng: unknown field; did you mean 'special_casing'"),
    ],
)
def test_a_monitor_that_cannot_be_used_is_said_when_the_recipe_is_loaded(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=rf"own\.toml:\d.*: .*{message}"):
        load_recipe(recipe(tmp_path, line))


def test_one_that_is_off_need_not_be_there(tmp_path: Path) -> None:
    load_recipe(recipe(tmp_path, '"no_such_module:x" = "off"'))


@pytest.mark.parametrize(
    "name",
    ["fails", "says_text", "without_evidence", "evidence_of_bytes", "turn_in_words", "reads_a_missing_file"],
)
def test_a_monitor_that_fails_finds_nothing_and_the_others_go_on(name: str) -> None:
    found = inspect(EPISODE, [f"mine_monitors:{name}", SLEEPS])
    assert [finding.monitor for finding in found] == [SLEEPS]
