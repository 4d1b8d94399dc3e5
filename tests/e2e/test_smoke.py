"""The smoke recipe through the real command line: what a person gets, and gets again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from real_runs import STEPS, SmokeRun, begin, woodshed
from waiting import ended, wait_until

from woodshed.evaluate.arms import AFTER, BEFORE, OTHER, REJECTION
from woodshed.policy.decoder import causal_attend
from woodshed.policy.hf import load_policy
from woodshed.recipe.load import load_recipe
from woodshed.record.jsonl import read_jsonl
from woodshed.record.run_directory import RunDirectory
from woodshed.run.curves import expected_curves
from woodshed.stages.demonstrations import demonstrate
from woodshed.stages.examples import load_examples
from woodshed.view.expected import read_curve

pytestmark = pytest.mark.slow

BASELINES = ("other-sft", "other-sft-evaluation", "sample", "rejection", "rejection-evaluation")
STAGES = ("tasks", "corpus", "pretrain", "demos", "sft", "mtp", "before", "rl", "after", *BASELINES)


def contents(root: Path) -> dict[str, str]:
    """Digest of every file, without those that exist while tests of another process read the same index."""
    files = {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file() and "sqlite-" not in p.name}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def test_ctrl_c_keeps_what_is_finished(smoke: SmokeRun) -> None:
    code, output = smoke.interrupted
    assert code == 130
    assert "interrupted; the same command continues the run" in output and "Traceback" not in output
    for stage in STAGES[:7]:
        name = Path("stages") / f"{stage}.json"
        assert (smoke.before_rl / name).read_bytes() == (smoke.root / name).read_bytes(), "a finished stage ran again"


def test_the_screen_shows_stages_and_table(smoke: SmokeRun) -> None:
    assert smoke.finished.returncode == 0, smoke.finished.stdout + smoke.finished.stderr
    screen = smoke.finished.stdout
    assert screen.count("done ") == len(STAGES)
    for part in ("asynchronous RL", f"{STEPS} steps", "4 held-out tasks x 2 samples", "SFT, rejection", "RL over"):
        assert part in screen
    for row in ("pass@1", "best-of-2", "later", "sampled", "invalid"):
        assert row in screen
    assert f"report: {smoke.root / 'report.html'}" in screen
    assert smoke.finished.stderr == ""


def test_the_key_of_the_run_survives_a_resume_and_is_in_no_record(smoke: SmokeRun) -> None:
    path = smoke.root / "held_out.key"
    key = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600 and (smoke.before_rl / "held_out.key").read_bytes() == key
    shown = {
        json.loads((smoke.root / "stages" / f"{s}.json").read_text())["held_out_key"]
        for s in ("before", "rl", "after", "other-sft-evaluation", "sample", "rejection-evaluation")
    }
    assert len(shown) == 1
    files = [p for p in smoke.root.rglob("*") if p.is_file() and p != path]
    assert not [p for p in files if key in p.read_bytes()]


def test_the_report_has_its_sections(smoke: SmokeRun) -> None:
    page = (smoke.root / "report.html").read_text()
    for section in (
        "Learning",
        "Health of RL",
        "Behaviour",
        "The same task, before and after",
        "Monitors",
        "Where the time went",
    ):
        assert f"<h2>{section}</h2>" in page
    assert page.count("<svg") >= 5 and "<script" not in page and "src=" not in page, "it opens without a network"
    summary = json.loads((smoke.root / "summary.json").read_text())
    assert summary["heldout_tasks"] == 4 and summary["samples"] == 2 and set(summary["stage_seconds"]) == set(STAGES)
    assert list(summary["arms"]) == [OTHER, BEFORE, REJECTION, AFTER] and summary["best_baseline"] != AFTER
    assert {"gain", "best_gain"} <= set(summary)
    for arm in summary["arms"].values():
        assert arm["temperature"] in (0.3, 1.0) and sum(arm["statuses"].values()) == 8


def test_the_history_is_as_expected(smoke: SmokeRun) -> None:
    """Two-sided, and a value that is not a number is an error, wherever it is."""
    expected = expected_curves(load_recipe("smoke"))
    assert expected is not None, "make it again: python benchmarks/expected.py RUN RUN..."
    assert {name for name in expected.curves if not len(read_curve(smoke.root, name)[0])} == set()
    assert expected.departures(smoke.root) == []


def test_transformers_opens_the_final_policy(smoke: SmokeRun) -> None:
    transformers = pytest.importorskip("transformers")
    folder = smoke.root / "policy" / "final"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_policy(folder)
    assert ours.version == STEPS
    tokens = torch.randint(0, ours.config.vocab_size, (2, 48), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits = ours.decoder.logits(ours.decoder(tokens, positions, causal_attend()))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_the_same_command_again_changes_nothing(smoke: SmokeRun) -> None:
    before = contents(smoke.root)
    stages = {p: p.stat().st_mtime_ns for p in (smoke.root / "stages").iterdir()}
    again = woodshed(smoke.scratch, *smoke.arguments)
    assert again.returncode == 0 and "pass@1" in again.stdout
    assert contents(smoke.root) == before
    assert {p: p.stat().st_mtime_ns for p in (smoke.root / "stages").iterdir()} == stages


def test_report_writes_the_page_again(smoke: SmokeRun) -> None:
    page = (smoke.root / "report.html").read_bytes()
    (smoke.root / "report.html").unlink()
    result = woodshed(smoke.scratch, "report", smoke.root)
    assert result.returncode == 0 and "pass@1" in result.stdout
    assert (smoke.root / "report.html").read_bytes() == page


def test_monitors_are_counted_and_shown(smoke: SmokeRun) -> None:
    steps = read_jsonl(smoke.root / "metrics" / "rollouts.jsonl")
    assert len(steps) == STEPS and all(isinstance(step["findings"], dict) for step in steps)
    shown = woodshed(smoke.scratch, "monitors", smoke.root)
    assert shown.returncode == 0 and "flagged" in shown.stdout, shown.stderr
    unknown = woodshed(smoke.scratch, "monitors", smoke.root, "--only", "nosuch")
    assert unknown.returncode == 2 and "there are: solution_retrieved" in unknown.stderr


def test_hints_are_found_and_distilled(smoke: SmokeRun) -> None:
    found = [line["hints"] for line in read_jsonl(smoke.root / "metrics" / "rollouts.jsonl")]
    trained = read_jsonl(smoke.root / "metrics" / "trainer.jsonl")
    assert len(found) == len(trained) == STEPS and sum(hints["messages"] for hints in found) > 0
    for hints, line in zip(found, trained):
        assert hints["unplaced"] == 0 and hints["episodes"] > 0
        assert line.get("hint_tokens", 0) == hints["tokens"]
        assert not hints["tokens"] or (line["hint_kl"] > 0 and line["hint_gap"] != 0)
    assert json.loads((smoke.root / "results" / "demos.json").read_text())["hinted"] > 0


def test_agent_works_on_a_task(smoke: SmokeRun) -> None:
    task = next((smoke.root / "tasks" / "synthetic-heldout").iterdir())
    result = woodshed(smoke.scratch, "agent", "--run", smoke.root, "--task", task)
    assert result.returncode == 0, result.stderr
    assert str(task) in result.stdout and "tokens sampled" in result.stdout
    assert "graded in a fresh box: " in result.stdout
    assert not list((smoke.scratch / "tmp").glob("woodshed-*")), "the agent left temporary files"


def test_agent_works_on_a_folder(smoke: SmokeRun, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1\n")
    given = ("agent", "--run", smoke.root, "--folder", tmp_path)
    result = woodshed(smoke.scratch, *given, "--prompt", "Make A two.", "--yes")
    assert result.returncode == 0, result.stderr
    assert "Make A two." in result.stdout and "tokens sampled" in result.stdout
    unchanged = [p.name for p in tmp_path.iterdir()] == ["a.py"] and (tmp_path / "a.py").read_text() == "A = 1\n"
    assert ("nothing was changed" in result.stdout) == unchanged
    result = woodshed(smoke.scratch, *given)
    assert result.returncode == 2 and "--folder needs --prompt" in result.stderr
    result = woodshed(smoke.scratch, "agent", "--run", smoke.root, "--folder", tmp_path / "none", "--prompt", "p")
    assert result.returncode == 2 and "not a folder" in result.stderr and "Traceback" not in result.stderr


def test_agent_says_which_policies_there_are(smoke: SmokeRun) -> None:
    result = woodshed(smoke.scratch, "agent", "--run", smoke.root, "--stage", "nosuch")
    assert result.returncode == 2 and "this run has: final, other-sft, pretrain, rejection, sft" in result.stderr


def last_stage_to_do(smoke: SmokeRun, root: Path) -> None:
    """A copy of the run in which the last stage did not end; its episodes are stored already."""
    shutil.copytree(smoke.root, root, dirs_exist_ok=True)
    for folder in ("stages", "results"):
        (root / folder / "after.json").unlink()
    shutil.rmtree(root / "server")


def test_demonstrations_go_on_where_they_were(smoke: SmokeRun, tmp_path: Path) -> None:
    shutil.copytree(smoke.root, tmp_path, dirs_exist_ok=True)
    run = RunDirectory(tmp_path)
    recipe = load_recipe(run.recipe)
    log, examples = run.demonstrations / "played.jsonl", run.demonstrations / "examples.npz"
    lines, whole = log.read_bytes().splitlines(keepends=True), load_examples(examples)
    examples.unlink()
    log.write_bytes(b"".join(lines[:-3]) + lines[-1][:50])
    demonstrate(recipe, run)
    assert log.read_bytes().splitlines(keepends=True)[:-3] == lines[:-3], "what was played was played again"
    assert sorted(row["number"] for row in read_jsonl(log)) == list(range(recipe.learn.demonstrations.episodes))
    for ours, theirs in zip(load_examples(examples), whole, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist() and ours.weights.tolist() == theirs.weights.tolist()


def test_two_runs_in_one_directory(smoke: SmokeRun, tmp_path: Path) -> None:
    """The second is refused, also with --fresh, and the first finishes."""
    root, output = tmp_path / "run", tmp_path / "output"
    last_stage_to_do(smoke, root)
    RunDirectory(root).write_clock({"after": 3600.0})  # what it took before it was interrupted
    process = begin(tmp_path, "run", root, output=output)
    try:
        wait_until(lambda: (root / "server" / "address.json").exists(), "the last stage to begin", process)
        process.send_signal(signal.SIGSTOP)  # it must not finish before the others were refused
        for extra in ((), ("--fresh",)):
            result = woodshed(tmp_path, "run", root, *extra)
            assert result.returncode == 2 and f"{root} is being run by another process" in result.stderr
            assert "--out" in result.stderr and "Traceback" not in result.stderr
        process.send_signal(signal.SIGCONT)
        assert ended(process) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
    assert "pass@1" in output.read_text()
    assert 3600 < (RunDirectory(root).stage_result("after") or {})["seconds"] < 3600 + 120


def test_a_directory_of_another_recipe(smoke: SmokeRun, tmp_path: Path) -> None:
    before = contents(smoke.root)
    result = woodshed(tmp_path, *smoke.arguments, "--set", "rl.group_size=5")
    assert result.returncode == 2 and contents(smoke.root) == before
    for part in (str(smoke.root), "another recipe", "rl.group_size", "--out", "--fresh"):
        assert part in result.stderr


def test_a_damaged_stage_file_is_named(smoke: SmokeRun) -> None:
    path = smoke.root / "stages" / "sft.json"
    whole = path.read_bytes()
    try:
        for text in (b'{"note": "cut', b"[]", b"\xff"):
            path.write_bytes(text)
            for arguments in (smoke.arguments, ("report", smoke.root)):
                result = woodshed(smoke.scratch, *arguments)
                assert result.returncode == 2, result.stdout
                assert f"{path} is damaged" in result.stderr and "delete it and run again" in result.stderr
                assert "Traceback" not in result.stderr
    finally:
        path.write_bytes(whole)


def fill(root: Path) -> bool:
    """Shrink the file system to what it holds; fails where the run has just written more."""
    used = os.statvfs(root)
    kib = (used.f_blocks - used.f_bfree) * used.f_frsize // 1024
    return not subprocess.run(["mount", "-o", f"remount,size={kib}k", root], capture_output=True).returncode


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_stops_the_run_and_space_continues_it(smoke: SmokeRun, tmp_path: Path) -> None:
    root, output = tmp_path / "run", tmp_path / "output"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "none", root], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        last_stage_to_do(smoke, root)
        process = begin(tmp_path, "run", root, output=output)
        try:
            wait_until(lambda: (root / "server" / "address.json").exists(), "the last stage to begin", process)
            wait_until(lambda: fill(root), "the disk to be full", process)
            assert ended(process) == 2
        finally:
            process.kill()
            process.wait()
        screen = output.read_text()
        assert "Traceback" not in screen and f"woodshed: {root}: the disk is full" in screen
        assert "make space and give the same command again" in screen
        subprocess.run(["mount", "-o", "remount,size=2g", root], check=True)
        result = woodshed(tmp_path, "run", root)
        assert result.returncode == 0 and "pass@1" in result.stdout, result.stdout + result.stderr
    finally:
        subprocess.run(["umount", "-l", root], check=True)
