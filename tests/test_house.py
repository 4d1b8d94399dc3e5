"""What the layout promises: no circles, a guest that needs nothing but Python, light imports."""

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
    assert circles(module_graph(PACKAGE)) == []


def test_circles_are_found(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    modules = {"__init__": "", "a": "from . import b", "b": "def f():\n  from p.c import x", "c": "import p.a"}
    for name, text in modules.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert circles(module_graph(tmp_path / "p")) == [["p.a", "p.b", "p.c"]]
    (tmp_path / "p" / "c.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a")
    assert circles(module_graph(tmp_path / "p")) == []


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
