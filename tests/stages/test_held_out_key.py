"""A run draws its key once and keeps it to itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.grading.settings import GradingSettings
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.record.run_directory import DirectoryError, RunDirectory
from woodshed.run.run import RunError, claim
from woodshed.stages.tasks import VARIABLE, key_digest, with_key


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def started(root: Path, *overrides: str, fresh: bool = False) -> str:
    """The key with which a run in ``root`` grades, as a stage of it reads it."""
    run, recipe = RunDirectory(root), load_recipe("smoke", overrides)
    with claim(run, recipe, fresh=fresh):
        return with_key(load_recipe(run.recipe).grading, run.root).held_out_key


def test_two_runs_have_two_keys_and_a_resume_keeps_its_own(tmp_path: Path) -> None:
    first, second = started(tmp_path / "a"), started(tmp_path / "b")
    assert first != second and min(len(first), len(second)) >= 32
    assert started(tmp_path / "a") == first and started(tmp_path / "b") == second
    assert (tmp_path / "a" / "held_out.key").stat().st_mode & 0o777 == 0o600
    assert started(tmp_path / "a", fresh=True) != first


def test_an_explicit_key_wins_and_does_not_change_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started(tmp_path / "a", "grading.held_out_key='mine'") == "mine"
    assert started(tmp_path / "a") == "mine", "kept, whatever the resumed command says"
    with pytest.raises(RunError, match=r"held_out\.key holds another key than grading\.held_out_key"):
        started(tmp_path / "a", "grading.held_out_key='other'")
    monkeypatch.setenv(VARIABLE, "of the host")
    assert started(tmp_path / "b") == "of the host"
    assert started(tmp_path / "c", "grading.held_out_key='mine'") == "mine"
    with pytest.raises(RunError, match="delete the file to grade by other inputs"):
        started(tmp_path / "b", "grading.held_out_key='mine'")


def test_records_have_a_digest_and_no_key(tmp_path: Path) -> None:
    key = started(tmp_path / "a", "grading.held_out_key='a secret key'")
    assert key not in dump_recipe(load_recipe("smoke", [f"grading.held_out_key='{key}'"]))
    settings = GradingSettings(held_out_key=key)
    assert key not in repr(settings) and key not in str(settings.model_dump())
    assert key_digest(settings) != key_digest(GradingSettings()) and key not in key_digest(settings)
    others = [p for p in (tmp_path / "a").rglob("*") if p.is_file() and p.name != "held_out.key"]
    assert others and not any(key.encode() in path.read_bytes() for path in others)


def test_a_key_that_was_emptied_is_not_taken(tmp_path: Path) -> None:
    with_key(GradingSettings(), tmp_path)
    (tmp_path / "held_out.key").write_text("\n")
    with pytest.raises(DirectoryError, match="is empty"):
        with_key(GradingSettings(), tmp_path)
