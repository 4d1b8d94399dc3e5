"""A chat format of the user's own, named by reference in a recipe and to ``woodshed serve``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

import woodshed.gateway.serve
import woodshed.policy.formats
from tests.policy.chat_samples import TOOLS, assistant
from woodshed.cli.main import app
from woodshed.gateway.rendering import Rendering
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.formats import format_name, get_format
from woodshed.policy.formats.base import conversation
from woodshed.policy.hf import load_chat, load_policy, save_policy, stored_format
from woodshed.policy.scratch import new_policy
from woodshed.policy.settings import PolicySettings
from woodshed.policy.tokenizer import TokenizerError
from woodshed.recipe.load import RecipeError, load_recipe

MODULE = """
from woodshed.policy.formats.hermes import HermesFormat
from woodshed.policy.tokenizer import Piece

MARKS = {"<tool_call>": "<act>", "</tool_call>": "</act>"}


class ActFormat(HermesFormat):
    special_tokens = tuple(MARKS.get(token, token) for token in HermesFormat.special_tokens)

    def calls(self, message, tools, *, after_text):
        pieces = super().calls(message, tools, after_text=after_text)
        return [Piece(MARKS.get(p.text, p.text), p.special) for p in pieces]

    def parse(self, text, tools):
        for theirs, ours in MARKS.items():
            text = text.replace(ours, theirs)
        return super().parse(text, tools)


class Unmade(HermesFormat):
    def __init__(self, size):
        self.size = size


class Nothing:
    name = "nothing"


instance = ActFormat()
"""
REFERENCE = "act_format:ActFormat"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Change line 2."},
    assistant("Now.", [("edit_line", {"path": "a.py", "line": 2, "text": "x = <act>"})]),
    {"role": "tool", "tool_call_id": "functions.edit_line:0", "content": "ok"},
]
SMALL: dict[str, Any] = {"d_model": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "d_ff": 8, "vocab_size": 300}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which has ``act_format.py``; nothing of it is imported yet."""
    (tmp_path / "act_format.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "act_format", raising=False)
    monkeypatch.setattr(woodshed.policy.formats, "_loaded", {})
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a process that has not named the format."""
    monkeypatch.setattr(woodshed.policy.formats, "_loaded", {})


def saved(directory: Path) -> Path:
    settings = PolicySettings(format=REFERENCE, **SMALL)
    return save_policy(new_policy(settings, ["Change line 2.", "x = 1"]), directory)


def test_it_renders_and_parses_through_load_chat_and_the_gateway(tmp_path: Path) -> None:
    _, tokenizer, chat, _ = load_chat(saved(tmp_path / "policy"), format=REFERENCE)
    text = "".join(piece.text for piece in conversation(chat, MESSAGES, TOOLS))
    assert '<act>\n{"name": "edit_line"' in text and "}\n</act><|im_end|>" in text
    rendering = Rendering(chat, tokenizer)
    completion = chat.message(MESSAGES[2], TOOLS)[len(chat.generation()) :]
    ids = tokenizer.encode_pieces(completion)
    assert {tokenizer.special_ids["<act>"], tokenizer.special_ids["</act>"]} <= set(ids)
    parsed = rendering.format.parse(tokenizer.decode(ids), TOOLS)
    assert (parsed.content, parsed.error, parsed.tool_calls[0].name) == ("Now.", None, "edit_line")
    assert json.loads(parsed.tool_calls[0].arguments_json)["path"] == "a.py"


def test_a_saved_policy_names_it_and_is_opened_only_where_settings_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = saved(tmp_path / "policy")
    assert json.loads((directory / "woodshed.json").read_text())["format"] == REFERENCE
    forget(monkeypatch)
    with pytest.raises(TokenizerError, match=f"names the chat format '{REFERENCE}'.*policy\\.format .*--format"):
        load_policy(directory)
    with pytest.raises(ValueError, match="names the chat format"):
        stored_format(directory)
    load_recipe("laptop", [f"policy.format={REFERENCE}"])
    assert format_name(load_policy(directory).format) == format_name(stored_format(directory)) == REFERENCE


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("act_format:Missing", "'act_format:Missing' cannot be loaded: AttributeError"),
        ("no_such_module:A", "'no_such_module:A' cannot be loaded: ModuleNotFoundError"),
        ("act_format:instance", "'act_format:instance' is not a class"),
        ("act_format:Unmade", "'act_format:Unmade' cannot be called without arguments: TypeError"),
        ("act_format:Nothing", "'act_format:Nothing' is not a chat format: it has no begin_token, chat_template"),
        ("tango", "unknown chat format 'tango'; known: compact, .*, or 'module:Class'"),
    ],
)
def test_mistakes_are_named_when_settings_are_loaded(tmp_path: Path, reference: str, said: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'name = "mine"\n[policy]\nformat = "{reference}"\n')
    with pytest.raises(RecipeError, match=f"mine.toml:3: policy.format: {said}"):
        load_recipe(recipe)
    with pytest.raises(RecipeError, match=f"--set policy.format={reference}: policy.format: {said}"):
        load_recipe("laptop", [f"policy.format={reference}"])
    with pytest.raises(ValidationError, match="format\n.*" + said):
        GatewaySettings(format=reference)


def test_serve_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[GatewaySettings] = []
    monkeypatch.setenv("WOODSHED_ADMIN_KEY", "a-key-that-is-long-enough")
    monkeypatch.setattr(woodshed.gateway.serve, "main", lambda settings, announce: seen.append(settings))
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "policy"), "--format", REFERENCE])
    assert done.exit_code == 0, done.output
    assert seen[0].format == REFERENCE and get_format(REFERENCE).special_tokens[3] == "<act>"
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "policy"), "--format", "act_format:Missing"])
    assert done.exit_code == 2
    assert "--format: 'act_format:Missing' cannot be loaded: AttributeError" in " ".join(done.output.split())
    assert len(seen) == 1
