"""Rules of the layout: no import circles, a guest that runs on the standard library, imports without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.module_graph import circles, module_graph
from woodshed.stages.__main__ import STAGES

PACKAGE = Path(__file__).parents[1] / "woodshed"


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(module_graph("woodshed")) == []


def test_circles_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("round_a", "round_b"):
        (tmp_path / name).mkdir()
        modules = {"__init__": "", "a": "from . import b", "b": f"def f():\n  from {name}.c import x", "c": ""}
        for module, text in modules.items():
            (tmp_path / name / f"{module}.py").write_text(text)
    (tmp_path / "round_a" / "c.py").write_text("import round_a.a")
    (tmp_path / "round_b" / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import round_b.a"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert circles(module_graph("round_a")) == [["round_a.a", "round_a.b", "round_a.c"]]
    assert circles(module_graph("round_b")) == []


def test_the_guest_needs_the_standard_library_and_itself_only() -> None:
    guest = PACKAGE / "sandbox" / "guest"
    own = {file.stem for file in guest.glob("*.py")}
    for file in guest.iterdir():
        if file.name == "__pycache__":
            continue
        assert file.suffix == ".py", f"{file}: the folder is copied into boxes, and only Python files are"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                strange = [a.name for a in node.names if a.name.partition(".")[0] not in sys.stdlib_module_names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                strange = (
                    [node.module or ""] if (node.module or "").partition(".")[0] not in sys.stdlib_module_names else []
                )
            elif isinstance(node, ast.ImportFrom):
                names = [node.module] if node.module else [a.name for a in node.names]
                strange = [n for n in names if node.level > 1 or n not in own]
            else:
                continue
            assert not strange, f"{file}: {strange} is not in a box"


def test_every_stage_is_there() -> None:
    for module, function in STAGES.values():
        assert callable(getattr(import_module(f"woodshed.stages.{module}"), function))


@pytest.mark.parametrize("module", ["woodshed", "woodshed.recipe.load", "woodshed.cli.main", "woodshed.record.task"])
def test_no_torch_until_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'ray', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
