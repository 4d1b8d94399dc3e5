"""``qwen3_coder``, ``llama3`` and ``kimi_k2`` against references of the published formats, and through transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.chat_references import REFERENCES
from tests.policy.chat_samples import TOOLS, assistant, conversations
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.formats.base import conversation
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe

NEW = sorted(REFERENCES)
Json = dict[str, Any]


def text_of(name: str, messages: list[Json], tools: list[Json], generate: bool = False) -> str:
    return "".join(p.text for p in conversation(get_format(name), messages, tools, generate=generate))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Format -> transformers' tokenizer of a policy that we saved in it."""
    out = {}
    for name in NEW:
        chat, config = get_format(name), DecoderConfig(300, 8, 1, 1, 1, 8, 8)
        tokenizer = Tokenizer(train_bpe(["a b"], 300, chat.special_tokens))
        path: Path = tmp_path_factory.mktemp(name) / "p"
        save_policy(Policy(Decoder(config), tokenizer, chat, config), path)
        out[name] = transformers.AutoTokenizer.from_pretrained(path)
    return out


@pytest.mark.parametrize("name", NEW)
@settings(max_examples=60, deadline=None)
@given(messages=conversations(), tools=st.sampled_from([[], TOOLS]), generate=st.booleans())
def test_equals_the_reference_and_its_own_template(
    theirs: dict[str, Any], name: str, messages: list[Json], tools: list[Json], generate: bool
) -> None:
    ours = text_of(name, messages, tools, generate)
    reference = REFERENCES[name](messages, tools, generate)
    # Our ChatML turns start with the newline that ends the published ones, so that a text can stop at its stop token.
    assert reference == (ours + "\n" if name == "qwen3_coder" and not generate else ours)
    options: Json = {"tools": tools or None, "add_generation_prompt": generate, "tokenize": False}
    assert theirs[name].apply_chat_template(messages, **options) == ours


@pytest.mark.parametrize("name", NEW)
def test_without_a_system_message_and_with_thinking(theirs: dict[str, Any], name: str) -> None:
    said = {**assistant("b", [("finish", {})]), "reasoning_content": "a\nz"}
    for tools in ([], TOOLS):
        messages = [{"role": "user", "content": "hi"}, said]
        options: Json = {"tools": tools or None, "tokenize": False}
        assert theirs[name].apply_chat_template(messages, **options) == text_of(name, messages, tools)
