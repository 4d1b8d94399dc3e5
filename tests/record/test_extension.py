"""User code that a recipe refers to."""

import subprocess
import sys
from pathlib import Path

import pytest

import woodshed
from woodshed.record.settings import load_reference

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from woodshed.record.settings import load_reference
print(load_reference("mine:Thing", "rl.algorithm"))
"""


def test_the_current_folder_is_looked_in_by_an_installed_program_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("Thing = 'of one\\'s own'\n")
    command = [sys.executable, "-I", "-c", PROGRAM, str(Path(woodshed.__file__).parent.parent)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "of one's own\n"


def test_what_a_module_raises_is_said_with_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ends.py").write_text("import sys\nsys.exit()\n")
    reasons = {
        "broken:A": "ZeroDivisionError",
        "ends:A": "SystemExit",
        "broken2:A": "ModuleNotFoundError",
        "os:A": "'A'",
    }
    for reference, why in reasons.items():
        with pytest.raises(ValueError, match=f"rl.algorithm: '{reference}' cannot be loaded: .*{why}"):
            load_reference(reference, "rl.algorithm")
