"""Conversations of one's own: what is learned from them, and what is said about files that cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gateway.parts import TOKENIZERS
from tests.stages.test_solved import LAPTOP, run_with, weights
from woodshed.policy.formats import get_format
from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.run.plan import plan
from woodshed.run.run import RunError, check_machine
from woodshed.stages.conversations import ConversationError, read_conversations, render_conversations
from woodshed.stages.demonstrations import demonstrate
from woodshed.stages.examples import load_examples
from woodshed.stages.failures import StageFailed
from woodshed.stages.policy import fine_tune

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


def call(command: str, **more: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}], **more}


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Repair it."},
    call("rm -rf tests", weight=0),
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
    call("sed -i s/a/b/ x.py", weight=0.5),
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
    {"role": "assistant", "content": "It is repaired."},
]


def file(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_replies_are_learned_by_their_weight(tmp_path: Path) -> None:
    path = file(tmp_path / "own.jsonl", {"messages": MESSAGES, "tools": [TOOL]})
    tokenizer = TOKENIZERS["hermes"]
    (example,), cut = render_conversations([path], get_format("hermes"), tokenizer, 10_000)
    of_weight = {w: tokenizer.decode(example.tokens[example.weights == w].tolist()) for w in (0.0, 0.5, 1.0)}
    assert "sed" in of_weight[0.5] and of_weight[1.0].startswith("It is repaired.")
    assert all(text in of_weight[0.0] for text in ("Be brief.", '"name": "bash"', "Repair it.", "rm -rf tests", "ok"))
    assert cut == 0
    (short,), cut = render_conversations([path], get_format("hermes"), tokenizer, 20)
    assert cut == 1 and short.tokens.tolist() == example.tokens[:20].tolist() and len(short.weights) == 20


def test_arguments_may_be_an_object_and_lines_empty(tmp_path: Path) -> None:
    other = json.loads(json.dumps(MESSAGES))
    for message in other:
        for made in message.get("tool_calls", ()):
            made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    path = file(tmp_path / "own.jsonl", {"messages": MESSAGES}, "", {"messages": other})
    (one, two), _ = render_conversations([path], get_format("hermes"), TOKENIZERS["hermes"], 10_000)
    np.testing.assert_array_equal(one.tokens, two.tokens)


def test_progress_is_told(tmp_path: Path) -> None:
    path = file(tmp_path / "own.jsonl", *({"messages": MESSAGES},) * 1001)
    told: list[int] = []
    render_conversations([path], get_format("hermes"), TOKENIZERS["hermes"], 10_000, told.append)
    assert told == [500, 1000]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"own\.jsonl:2: not JSON"),
        ("[" * 100_000, r"own\.jsonl:2: not JSON"),
        ([1], r"own\.jsonl:2: has no list of messages"),
        ({"messages": []}, r"own\.jsonl:2: has no list of messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, r"messages\[0\]: needs a role, one of system, .*tool"),
        ({"messages": ["x"]}, r"messages\[0\]: needs a role"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]: message content must be text, got int"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no reply to learn from"),
        ({"messages": [call("x", weight=0)]}, "no reply to learn from"),
        ({"messages": [call("x", weight=2)]}, r"messages\[0\]: weight is 2, and should be a number from 0 to 1"),
        ({"messages": [call("x", weight=True)]}, "weight is True"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, r"messages\[0\]: tool_calls is no list"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool call without function.name"),
        ({"messages": MESSAGES, "tools": {}}, "tools: each is"),
        ({"messages": MESSAGES, "tools": [{"name": "bash"}]}, "tools: each is"),
        ({"messages": MESSAGES, "tools": [{"function": "bash"}]}, "tools: each is"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = file(tmp_path / "own.jsonl", {"messages": MESSAGES}, row)
    with pytest.raises(ConversationError, match=message):
        list(read_conversations([path]))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "is no file"),
        (os.mkfifo, "is no file; it is read twice, so it cannot be a pipe"),
        (lambda path: path.write_text(""), "is empty; it should have one conversation on each line"),
        (lambda path: path.write_text("\n\n"), "is empty"),
        (lambda path: path.write_bytes(b'{"messages": "\xff'), ":1: not JSON: 'utf-8' codec"),
    ],
)
def test_a_file_that_is_none_is_named_before_a_run_starts(
    tmp_path: Path, made: Callable[[Path], object], message: str
) -> None:
    made(path := tmp_path / "own.jsonl")
    recipe = load_recipe(LAPTOP, [f"learn.demonstrations.conversations=['{path}']"])
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=rf"^learn\.demonstrations\.conversations: .*own\.jsonl.*{message}"):
        check_machine(recipe, run)
    run.finish_stage("demos", {"conversations": 1})
    check_machine(recipe, run)  # they were read already


def test_a_run_learns_from_them_alone(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run")
    path = file(tmp_path / "own.jsonl", *({"messages": MESSAGES, "tools": [TOOL]},) * 20)
    settings = f"learn.demonstrations={{episodes=0,conversations=['{path}']}}"

    def taught(max_tokens: int) -> dict[str, Any]:
        source = f"policy.source='{run.policy('pretrain')}'"
        recipe = load_recipe(LAPTOP, [source, settings, f"learn.sft={{max_tokens={max_tokens},other_lr=0.002}}"])
        assert {"demos", "sft"} <= {stage.name for stage in plan(recipe, run)}
        demonstrate(recipe, run)
        assert len(load_examples(run.examples())) == len(load_examples(run.examples(verified=True))) == 20
        fine_tune(recipe, run)
        return run.read_result_of("demos")

    with pytest.raises(StageFailed, match=r"or raise learn\.sft\.max_tokens where all replies are cut off"):
        taught(60)
    assert run.read_result_of("demos")["cut"] == 20
    assert taught(8192)["note"] == "20 conversations, 0.01M tokens, 0 of them cut"
    before, after = weights(run, "pretrain"), weights(run, "sft")
    assert any((before[name] != after[name]).any() for name in before), "nothing was learned"


def test_an_agent_program_is_taught_by_them(tmp_path: Path) -> None:
    program = ["harness.program.command='x'", "policy.source='elsewhere'"]
    with pytest.raises(RecipeError, match=r"or give conversations with the program as learn\.demonstrations\.conv"):
        load_recipe(LAPTOP, program)
    recipe = load_recipe(LAPTOP, [*program, "learn.demonstrations={episodes=0,conversations=['own.jsonl']}"])
    names = {stage.name for stage in plan(recipe, RunDirectory(tmp_path))}
    assert "rejection" not in names
    baselines = load_recipe(
        LAPTOP,
        [*program, "evaluate.baselines=true", "learn.demonstrations={episodes=0,conversations=['own.jsonl']}"],
    )
    names = {stage.name for stage in plan(baselines, RunDirectory(tmp_path))}
    assert "rejection" in names and "other-sft" not in names, "they all count as verified"
