"""Mistakes through the real command line: exit code 2, one screen that names what is wrong, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from real_runs import ROOT, SMOKE, woodshed

SMOLLM2 = ROOT / "recipes" / "smollm2.toml"


def refused(folder: Path, *arguments: str | Path, says: Sequence[str], prefix: Sequence[str] = (), **extra: str) -> str:
    """The command ends with 2, says so on one screen, and makes no run directory."""
    result = woodshed(folder, "run", *arguments, "--out", folder / "out", extra=extra, prefix=prefix)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) <= 25
    for part in says:
        assert part in result.stderr
    return result.stderr


def changed_recipe(folder: Path, old: str, new: str) -> Path:
    text = SMOKE.read_text()
    assert old in text
    path = folder / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_a_typo_in_a_field_name(tmp_path: Path) -> None:
    path = changed_recipe(tmp_path, "group_size = 4", "group_sise = 4")
    refused(tmp_path, path, says=[f"{path}:{line_of(path, 'group_sise')}: rl.group_sise", "did you mean 'group_size'?"])
    assert not (tmp_path / "out").exists()


def test_a_wrong_type(tmp_path: Path) -> None:
    path = changed_recipe(tmp_path, "steps = 4", 'steps = "three"')
    refused(tmp_path, path, says=[f"{path}:{line_of(path, 'three')}: rl.steps", "valid integer", "'three'"])
    refused(tmp_path, SMOKE, "--set", "rl.steps=many", says=["--set rl.steps=many: rl.steps", "valid integer"])
    refused(tmp_path, SMOKE, "--set", "rl.steps", says=["--set rl.steps: write field=value"])
    assert not (tmp_path / "out").exists()


def test_impossible_combinations(tmp_path: Path) -> None:
    sync = ("--set", "rl.mode=sync", "--set", "rl.max_staleness=1")
    refused(tmp_path, SMOKE, *sync, says=["rl: mode 'sync' sets max_staleness to 0", "set rl.max_staleness=0"])
    short = ["learn.sft.max_tokens is 1024", "policy.max_positions = 128", "lower the one or raise the other"]
    refused(tmp_path, SMOKE, "--set", "policy.max_positions=128", says=short)
    few = ["needs 60 training tasks", "tasks.synthetic.train is 24", "lower rl.steps or raise tasks.synthetic.train"]
    refused(tmp_path, SMOKE, "--set", "rl.steps=30", says=few)
    refused(tmp_path, SMOKE, "--set", "tasks.main=packages", says=["no [tasks.packages] table; add one"])
    terse = ("--set", "tasks.packages.prompt=terse")
    refused(tmp_path, SMOLLM2, *terse, says=['add "grep" to harness.tools', 'tasks.packages.prompt = "located"'])
    engine = ("--set", "sandbox.backend=docker")
    says = ["sandbox.backend = 'docker' does not work here", "woodshed probe"]
    refused(tmp_path, SMOKE, *engine, says=says, DOCKER_HOST=f"unix://{tmp_path}/nobody")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu(tmp_path: Path) -> None:
    refused(
        tmp_path, SMOKE, "--set", "policy.device=cuda", says=["policy.device is 'cuda'", "torch finds no GPU", "'cpu'"]
    )
    assert not (tmp_path / "out").exists()


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "policy"
    source.mkdir()
    change = ("--set", f"policy.source={source}")
    refused(tmp_path, SMOKE, *change, says=["policy.source", f"{source} has no config.json", "Hugging Face directory"])
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    source = tmp_path / "policy"
    source.mkdir()
    (source / "config.json").write_text('{"architectures": ["nosuch"]}')
    change = ("--set", f"policy.source={source}")
    refused(tmp_path, SMOKE, *change, says=[f"policy.source: {source / 'config.json'}", "nosuch", "LlamaForCausalLM"])
    (source / "config.json").write_text("{")
    refused(tmp_path, SMOKE, *change, says=[f"policy.source: {source / 'config.json'}", "not JSON"])
    assert not (tmp_path / "out").exists()


def test_a_package_that_does_not_exist(tmp_path: Path) -> None:
    change = ("--set", 'tasks.packages.packages=["no-such-package-xyz"]')
    refused(tmp_path, SMOKE, *change, says=["tasks.packages", "'no-such-package-xyz'", "catalogue", "cachetools"])
    assert not (tmp_path / "out").exists()


def test_no_network_for_packages(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        change = ("--set", 'tasks.packages.packages=["inflection"]')
        says = ["tasks.packages: inflection", "package index cannot be reached", url, "set PIP_INDEX_URL"]
        refused(tmp_path, SMOKE, *change, says=says, PIP_INDEX_URL=url)
        assert not (tmp_path / "out").exists()


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "near.toml").write_text("")
    refused(tmp_path, "nosuch.toml", says=["nosuch.toml: no such recipe", "near.toml"])
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path, "binary.toml", says=["binary.toml: cannot be read", "TOML file in UTF-8"])
    (tmp_path / "half.toml").write_text("name = \n")
    refused(tmp_path, "half.toml", says=["half.toml: not valid TOML", "line 1"])
    (tmp_path / "folder").mkdir()
    refused(tmp_path, "folder", says=["folder is not a run directory", "give a recipe"])
    assert not (tmp_path / "out").exists()


def test_a_recipe_that_this_user_may_not_read(tmp_path: Path) -> None:
    path = changed_recipe(tmp_path, "steps = 4", "steps = 2")
    path.chmod(0)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root may read everything until it gives that up
        caps = "-dac_override,-dac_read_search"
        prefix = ("setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}")
        if not shutil.which("setpriv") or not subprocess.run([*prefix, "cat", path], capture_output=True).returncode:
            pytest.skip("root cannot give up reading everything here")
    refused(tmp_path, path, says=[f"{path}: cannot be read", "Permission denied"], prefix=prefix)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    for fresh in ((), ("--fresh",)):
        refused(tmp_path, SMOKE, *fresh, says=["out is not empty and is not a run directory", "--out"])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_no_user_namespaces(tmp_path: Path) -> None:
    inner = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = ("unshare", "-U", "-r", "sh", "-c", inner, "sh")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no nested user namespace whose limit could be set")
    refused(
        tmp_path,
        SMOKE,
        prefix=prefix,
        says=["sandbox.backend = 'namespace' does not work here", "sysctl user.max_user_namespaces"],
    )
    assert not (tmp_path / "out").exists()
