"""Every setting of a recipe is read by some program: a name that nothing uses is a promise that nothing keeps."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

import woodshed
from woodshed.recipe.recipe import Recipe
from woodshed.record.settings import Settings
from woodshed.train.batch import PARTS

ROOT = Path(woodshed.__file__).parent
BY_NAME = {"MonitorSettings": "treated() iterates over all fields, whose names are those of the monitors"}


def settings_of(kind: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """``kind`` and every settings class that its fields mention."""
    if kind in seen:
        return seen
    seen.add(kind)
    waiting: list[object] = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        found = waiting.pop()
        waiting += get_args(found)
        if isinstance(found, type) and issubclass(found, BaseModel):
            settings_of(found, seen)
    return seen


def declared() -> Iterator[tuple[str, str]]:
    for kind in settings_of(Recipe, set()):
        for name in kind.model_fields if kind.__name__ not in BY_NAME else ():
            yield kind.__name__, name


class Reads(ast.NodeVisitor):
    """Names of attributes that are loaded; what a class of settings loads of itself is a check, no use."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any(isinstance(base, ast.Name) and base.id in ("Settings", "BaseModel") for base in node.bases):
            self.generic_visit(node)
            return
        for inner in node.body:  # properties and methods are how others read it; validators are not
            if isinstance(inner, ast.FunctionDef) and not any(
                "validator" in ast.dump(decorator) for decorator in inner.decorator_list
            ):
                self.visit(inner)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.attr)
        self.generic_visit(node)


@cache
def reads() -> frozenset[str]:
    visitor = Reads()
    for path in ROOT.rglob("*.py"):
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(visitor.names)


@pytest.mark.parametrize(("kind", "name"), sorted(declared()))
def test_a_setting_is_read_somewhere(kind: str, name: str) -> None:
    assert name in reads(), f"{kind}.{name} is declared, and no code reads it: wire it or delete it"


def test_every_loss_part_is_made_somewhere() -> None:
    """Its name stands in the code of whoever builds batches, not only where it is declared and computed."""
    makers = [ROOT / "rl" / "batching.py", *(ROOT / "rl" / "algorithms").glob("*.py"), *(ROOT / "stages").glob("*.py")]
    strings = {
        node.value
        for path in makers
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(PARTS) <= strings


def test_the_check_sees_what_is_not_read() -> None:
    class Nobody(Settings):
        read_by_nobody_at_all: int = 0

    assert "read_by_nobody_at_all" not in reads() and Nobody in settings_of(Nobody, set())
