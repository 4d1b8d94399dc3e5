"""Wrong input to commands is one line that names the option or the file, and exit code 2."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app

LONG = "a" * 300


@pytest.mark.parametrize(
    ("command", "says"),
    (
        (f"recipe {LONG}", "File name too long"),
        (f"report {LONG}", "File name too long"),
        (f"run smoke --out {LONG}", "File name too long"),
        (f"evaluate regrade {LONG}", "File name too long"),
        (f"tasks build . --out {LONG}", "File name too long"),
        ("tasks build . --out out --kind one", "--kind: Input should be 'mutate'"),
        ("tasks build . --out out --kind combine", "--kind: "),
        ("tasks build . --out out --suite-seconds inf", "--suite-seconds: "),
        ("tasks import rows.jsonl --out out --repositories . --suite-seconds inf", "--suite-seconds: "),
        ("tasks install . --out out --catalogue binary", "binary: 'utf-8'"),
        ("boxes --set keep_memory", "--set keep_memory: write field=value"),
        ("boxes --set keepmemory=3", "--set keepmemory=3: no such field; did you mean keep_memory?"),
        ("boxes --set keep_memory=much", "--set keep_memory=much: "),
        ("boxes --lease 0", "--lease: "),
        ("evaluate plan --difference 1e-300", "a difference of 1e-300 cannot be shown"),
        ("evaluate plan --difference-sd inf", "cannot be shown"),
        ("evaluate plan --from .", "no results.json of an evaluation"),
        ("evaluate regrade .", "evaluation.json is damaged"),
    ),
)
def test_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    for name in ("results.json", "evaluation.json"):
        (tmp_path / name).write_text(json.dumps({}))
    result = CliRunner().invoke(app, shlex.split(command))
    assert isinstance(result.exception, SystemExit) and result.exit_code == 2, result.exception
    assert says in " ".join(result.stderr.split()), result.stderr
