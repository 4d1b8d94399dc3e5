"""Expected curves: bands hold healthy runs of other seeds, and nothing that is broken."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from real_runs import SMOKE
from rich.console import Console

from woodshed.recipe.load import load_recipe
from woodshed.run import curves
from woodshed.run.curves import CurveWatch, expected_curves
from woodshed.run.run import RunError, run_recipe
from woodshed.view.expected import (
    Expected,
    ExpectedError,
    band_of,
    digest_of,
    expected_of,
    read_curve,
    smoothed,
)


def write_run(root: Path, seed: int, *, steps: int = 60, shift: float = 0.0, nan_at: int = -1) -> Path:
    """A pretraining loss that falls and a pass rate that rises, with noise."""
    rng = np.random.default_rng(seed)
    folder = root / "metrics"
    folder.mkdir(parents=True)
    with (folder / "pretrain.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            loss = math.nan if step == nan_at else 3 * math.exp(-step / 20) + 0.5 + 0.05 * rng.normal() + shift
            file.write(json.dumps({"step": step, "loss": loss, "lr": 0.1}) + "\n")
    with (folder / "rollouts.jsonl").open("w") as file:
        for step in range(1, 31):
            file.write(json.dumps({"step": step, "pass_rate": 0.3 + 0.01 * step + 0.05 * rng.normal()}) + "\n")
    return root


def made(tmp_path: Path) -> Expected:
    roots = [write_run(tmp_path / f"seed{seed}", seed) for seed in range(3)]
    return expected_of(
        roots, recipe="laptop", digest="d", seeds=[0, 1, 2], hardware="h", commit="c", minutes=[1.0, 1.0, 1.0]
    )


def test_other_seeds_stay_inside_and_what_changed_leaves(tmp_path: Path) -> None:
    expected = made(tmp_path)
    assert set(expected.curves) == {"pretraining loss", "pass rate"}, "only what the runs have"
    healthy = [write_run(tmp_path / f"other{seed}", seed) for seed in range(100, 140)]
    outside = sum(bool(expected.departures(root)) for root in healthy)
    assert outside <= 4, f"{outside} of 40 healthy runs leave the bands of three"
    for shift in (0.6, -0.6):  # two-sided: better than expected is a change, too
        (departure,) = expected.departures(write_run(tmp_path / f"shift{shift}", 7, shift=shift))
        assert departure.curve == "pretraining loss" and departure.band is not None
        low, high = departure.band
        assert departure.value > high if shift > 0 else departure.value < low


def test_a_value_that_is_no_number_is_always_wrong(tmp_path: Path) -> None:
    expected = made(tmp_path)
    (departure,) = expected.departures(write_run(tmp_path / "nan", 5, nan_at=3))
    assert departure.band is None and str(departure) == "pretraining loss is nan at step 3"
    with pytest.raises(ExpectedError, match="not numbers"):
        band_of([read_curve(tmp_path / name, "pretraining loss") for name in ("nan", "seed1")], least=0.05)


def test_a_run_under_way_is_judged_by_what_it_has(tmp_path: Path) -> None:
    expected = made(tmp_path)
    assert expected.departures(tmp_path / "nothing yet") == []
    assert expected.departures(write_run(tmp_path / "short", 9, steps=20)) == []


def test_a_step_that_was_done_again_counts_once(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 0)
    with (root / "metrics" / "pretrain.jsonl").open("a") as file:
        file.write(json.dumps({"step": 60, "loss": 9.0}) + "\n")
    steps, values = read_curve(root, "pretraining loss")
    assert len(steps) == 60 and values[-1] == 9.0


def test_smoothing_is_the_mean_of_the_last_values() -> None:
    values = np.random.default_rng(0).normal(size=50)
    for window in (1, 7, 60):
        want = [values[max(0, i + 1 - window) : i + 1].mean() for i in range(50)]
        np.testing.assert_allclose(smoothed(values, window), want, atol=1e-12)
        broken = np.where(np.arange(50) == 3, np.nan, values)
        unknown = np.isnan(smoothed(broken, window))
        assert unknown[3 : 3 + window].all() and unknown.sum() == min(window, len(values) - 3), "only its windows"


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    expected = made(tmp_path)
    expected.save(tmp_path / "e.json")
    assert Expected.load(tmp_path / "e.json") == expected
    (tmp_path / "e.json").write_text('{"recipe": "laptop"}')
    with pytest.raises(ExpectedError, match=r"e\.json: not a file of expected curves"):
        Expected.load(tmp_path / "e.json")


def test_one_run_is_not_enough(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 0)
    with pytest.raises(ExpectedError, match="at least two"):
        expected_of([root], recipe="r", digest="d", seeds=[0], hardware="h", commit="c", minutes=[1.0])


def test_only_the_recipe_as_it_is_has_expectations() -> None:
    smoke = load_recipe("smoke")
    found = expected_curves(smoke)
    assert found is not None and found.recipe == "smoke" and len(found.seeds) >= 3
    assert expected_curves(smoke.model_copy(update={"seed": 77})) is not None
    assert expected_curves(load_recipe("laptop", ["rl.alarms.flat='pause'"])) is not None, "alarms change no curve"
    changed = load_recipe("smoke", ["train.optimizer.lr=0.5"])
    assert expected_curves(changed) is None
    assert digest_of(changed.model_dump(mode="json")) != digest_of(smoke.model_dump(mode="json"))


def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smoke.expected.json").write_text("{")
    monkeypatch.setattr(curves, "BUILTIN", tmp_path)
    with pytest.raises(RunError, match=r"smoke\.expected\.json: not a file of expected curves"):
        run_recipe(SMOKE, out=tmp_path / "run", overrides=[], fresh=False, console=Console(quiet=True))


@pytest.mark.parametrize(
    ("losses", "last"), [([5.0, 4.0, math.nan, 3.0], "3"), ([math.nan, math.nan], "nan"), ([math.inf, 1.0], "1")]
)
def test_a_curve_is_drawn_though_a_value_is_no_number(tmp_path: Path, losses: list[float], last: str) -> None:
    (tmp_path / "metrics").mkdir()
    rows = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1)]
    (tmp_path / "metrics" / "pretrain.jsonl").write_text("\n".join(rows))
    line = CurveWatch(tmp_path, None).drawn("pretrain")
    assert "×" in line and line.endswith(f" {last}")


def test_the_watch_tells_each_departure_once_and_draws(tmp_path: Path) -> None:
    watch = CurveWatch(write_run(tmp_path / "run", 7, shift=0.6), made(tmp_path))
    (news,) = watch.news(now=True)
    assert "pretraining loss" in news and "expected" in news and "laptop.expected.json" in news
    assert watch.news(now=True) == []
    line = watch.drawn("pretrain")
    assert line.startswith("pretraining loss █") and "(expected " in line
    assert "(expected" not in CurveWatch(tmp_path / "run", None).drawn("pretrain")
    assert watch.drawn("sft") == "" and watch.drawn("report") == ""
