"""Tools by reference: found outside the tree, checked when a recipe is loaded, part of the harness hash."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.gateway.parts import HERMES, ScriptedEngine
from tests.grading import toy
from tests.programs import play, served
from woodshed.harness.calls import Runner
from woodshed.harness.episode import Call
from woodshed.harness.registry import ToolRegistry, harness_hash
from woodshed.harness.session import Session
from woodshed.harness.settings import HarnessSettings
from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits

TOOL = """
import pathlib
from pydantic import field_validator
from woodshed import Arguments, Session, Tool, ToolError, ToolResult

ENDING = "!"


class ShoutArguments(Arguments):
    path: str


class Shout(Tool):
    name = "shout"
    Args = ShoutArguments

    def description(self):
        return "Read a file aloud."

    async def run(self, args, session):
        if args.path == "bug":
            raise KeyError(args.path)
        if args.path == "nothing":
            raise ToolError("not_found", "nothing is there")
        text = await session.read_text(session.path(args.path))
        await session.change("shouted.txt", None, text.upper().encode())
        return ToolResult(text.upper() + ENDING)


class Silent(Tool):
    name = "silent"


class Nameless(Shout):
    name = "not a name"


class Broken(Shout):
    name = "broken"

    def schema(self):
        return {"function": object()}


class Plain(Shout):
    name = "plain"

    def run(self, args, session):
        return ToolResult("x")


class OddArguments(Arguments):
    path: pathlib.Path

    @field_validator("path")
    @classmethod
    def known(cls, path):
        return {"text": path, "nothing": path, "number": path, "error": path, "plain": path}[str(path)]


class Odd(Tool):
    name = "odd"
    Args = OddArguments

    def description(self):
        return "Answer in strange ways."

    async def run(self, args, session):
        answers = {"text": "no result", "number": ToolResult(5), "error": ToolResult("", 5), "plain": ToolResult("x")}
        return answers.get(str(args.path))


NUMBER = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of tools outside the tree."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_tools", raising=False)
    path = tmp_path / "mine_tools.py"
    path.write_text(TOOL)
    return path


def recipe(folder: Path, tools: str) -> Path:
    path = folder / "own.toml"
    path.write_text(f'name = "own"\n\n[harness]\ntools = {tools}\noutput = {{ separator = "" }}\n')
    return path


def test_a_recipe_names_a_tool_and_the_policy_sees_it_in_its_place(module: Path) -> None:
    loaded = load_recipe(recipe(module.parent, '["finish", "mine_tools:Shout", "grep"]'))
    schemas = ToolRegistry(loaded.harness.tools, loaded.harness).schemas()
    assert [schema["function"]["name"] for schema in schemas] == ["finish", "shout", "grep"]
    assert schemas[1]["function"]["description"] == "Read a file aloud."
    again = module.parent / "again.toml"
    again.write_text(dump_recipe(loaded))
    assert load_recipe(again) == loaded


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Shout", "'no_such_module:Shout' cannot be loaded: ModuleNotFoundError"),
        ("mine_tools:Whisper", "'mine_tools:Whisper' cannot be loaded: AttributeError"),
        ("mine_tools:NUMBER", "'mine_tools:NUMBER' is no subclass of woodshed.Tool"),
        ("mine_tools:Silent", "'mine_tools:Silent' does not define description, run"),
        ("mine_tools:Nameless", "'mine_tools:Nameless' needs a class attribute `name`.*'not a name'"),
        ("mine_tools:Plain", "run of 'mine_tools:Plain' is no `async def`"),
        ("mine_tools:Broken", "'mine_tools:Broken' has no schema: TypeError"),
        ("shuot", r"unknown \['shuot'\]; known: .*or 'my_module:MyTool'"),
    ],
)
def test_a_tool_that_cannot_be_used_is_said_when_the_recipe_is_loaded(module: Path, name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"own\.toml:\d: harness: harness\.tools: {message}"):
        load_recipe(recipe(module.parent, f'["finish", "{name}"]'))


def test_two_tools_of_one_name_are_refused_and_one_may_take_a_built_in_name(module: Path) -> None:
    module.write_text(TOOL.replace('"shout"', '"grep"'))
    with pytest.raises(RecipeError, match="'mine_tools:Shout' is the second tool that the policy calls 'grep'"):
        load_recipe(recipe(module.parent, '["finish", "grep", "mine_tools:Shout"]'))
    load_recipe(recipe(module.parent, '["finish", "mine_tools:Shout"]'))


def test_the_hash_counts_name_schema_and_source(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = HarnessSettings(tools=("finish", "mine_tools:Shout"))

    def hash_of(source: str) -> str:
        module.write_text(source)
        sys.modules.pop("mine_tools", None)
        sys.path_importer_cache.clear()
        for cached in module.parent.glob("__pycache__/*"):
            cached.unlink()
        return harness_hash(settings)

    sources = (
        TOOL,
        TOOL.replace('"shout"', '"yell"'),
        TOOL.replace("aloud", "loudly"),
        TOOL.replace('ENDING = "!"', 'ENDING = "?"'),  # outside the class, and the answers change all the same
    )
    hashes = [hash_of(source) for source in sources]
    assert len(set(hashes)) == len(sources) and hash_of(TOOL) == hashes[0]
    assert harness_hash(HarnessSettings(tools=("finish",))) not in hashes


def test_an_answer_or_a_check_of_arguments_that_fails_is_an_internal_error(module: Path) -> None:
    """It must not end the episode as a failure of this machine. Arguments are recorded as JSON, whatever their type."""
    settings = HarnessSettings(tools=("mine_tools:Odd",))
    runner = Runner(
        ToolRegistry(settings.tools, settings),
        cast(Session, SimpleNamespace(settings=settings, finished=False, deadline=time.monotonic() + 1e6)),
    )
    names = ["text", "nothing", "number", "error", "unknown to the validator", "plain"]
    events = asyncio.run(runner.run([Call(name, "odd", json.dumps({"path": name})) for name in names], 1))
    assert [event.error for event in events] == ["internal_error"] * 5 + [None]
    assert events[-1].result == "x" and events[-1].arguments == {"path": "plain"}


def test_it_runs_in_a_real_box_through_the_loop(module: Path, tmp_path: Path) -> None:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    layers = LayerStore(tmp_path / "layers")
    task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))

    def call(name: str, path: str) -> str:
        arguments = f'{{"path": "{path}"}}' if path else "{}"
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'

    calls = [("shout", "shapes/measure.py"), ("read_file", "shouted.txt"), ("shout", "../etc/passwd")]
    said = iter(call(*each) for each in [*calls, ("shout", "nothing"), ("shout", "bug"), ("finish", "")])
    engine = ScriptedEngine(lambda _: HERMES.encode(next(said), allow_special=True), context=1 << 16)
    settings = HarnessSettings(tools=("read_file", "finish", "mine_tools:Shout"))
    with served(engine) as url:
        done = asyncio.run(play(task, layers, url, settings, limits=Limits(memory=1 << 30, disk=64 << 20)))
    assert done.status == "submitted" and done.harness_hash == harness_hash(settings)
    assert "RETURN WIDTH + HEIGHT" in done.events[0].result and done.events[0].result.endswith("!")
    assert "RETURN WIDTH + HEIGHT" in done.events[1].result, "the box has what the tool wrote"
    assert [e.error for e in done.events[2:5]] == ["path_outside_workspace", "not_found", "internal_error"]
    assert done.effort.edits == 1 and done.outcome is not None and not done.outcome.resolved
