"""What SFT and pretraining see: batches that cover everything once, rendering as the gateway renders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from woodshed.harness.registry import ToolRegistry
from woodshed.harness.settings import HarnessSettings, OutputSettings
from woodshed.policy.formats import FORMATS, get_format
from woodshed.policy.formats.base import conversation
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.stages.examples import Example, batches, count_batches, load_examples, save_examples
from woodshed.stages.render import render_conversation

HARNESS = HarnessSettings(
    tools=("read_file", "edit_line", "undo", "run_tests", "finish"),
    output=OutputSettings(separator=""),
    plain_message_ends=False,
)


def examples(count: int) -> list[Example]:
    rng = np.random.default_rng(0)
    out = []
    for number in range(count):
        length = int(rng.integers(2, 40))
        weights = rng.random(length).astype(np.float32)
        weights[0] = 0
        out.append(Example(np.full(length, number, np.int32), weights))
    return out


def test_every_example_is_served_once_per_epoch_and_counted(tmp_path: Path) -> None:
    save_examples(tmp_path / "e.npz", examples(50))
    loaded = load_examples(tmp_path / "e.npz")
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(loaded, examples(50), strict=True))
    served = list(batches(loaded, 64, seed=3, epochs=2))
    assert len(served) == count_batches(loaded, 64, seed=3, epochs=2)
    seen = np.concatenate([b.tokens[b.offsets[:-1]] for b in served])
    assert sorted(seen.tolist()) == sorted([*range(50), *range(50)])
    for batch in served:
        assert batch.denominators["ce"] == pytest.approx(batch.weights["ce"].sum())
    again = list(batches(loaded, 64, seed=3, epochs=2))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(served, again, strict=True))


def call(name: str, **arguments: object) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def test_batches_hold_sequences_of_similar_length() -> None:
    rng = np.random.default_rng(0)
    examples = [
        Example(np.ones(n, np.int32), (np.arange(n) > 0).astype(np.float32)) for n in rng.integers(40, 240, 3000)
    ]
    tokens = padded = 0
    for batch in batches(examples, 1024, seed=0):
        lengths = np.diff(batch.offsets)
        tokens, padded = tokens + lengths.sum(), padded + lengths.max() * len(lengths)
    assert tokens == sum(len(e.tokens) for e in examples) and 1 - tokens / padded < 0.08


@pytest.mark.parametrize("name", FORMATS)
def test_own_tokens_are_what_a_policy_would_sample(name: str) -> None:
    chat = get_format(name)
    tokenizer = Tokenizer(
        train_bpe(["fix: ridge def f(x): return x <tool_call> edit read"] * 9, 400, chat.special_tokens)
    )
    tools = ToolRegistry(HARNESS.tools, HARNESS).schemas()
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "fix: ridge <end> <|im_end|>"},
        call("read_file", path="ridge.py"),
        {"role": "tool", "tool_call_id": "c", "content": "\n1def f(x):\n2    return x"},
        call("edit_line", path="ridge.py", line=2, text="    return x + 1"),
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        call("finish"),
    ]
    tokens, own = render_conversation(messages, tools, chat, tokenizer)
    _, weighted = render_conversation(messages, tools, chat, tokenizer, [1.0, 0.25, 1.0])
    assert sorted(set(weighted)) == [0.0, 0.25, 1.0] and ((weighted > 0) == (own > 0)).all()
    with pytest.raises(ValueError, match="2 weights for 3 replies"):
        render_conversation(messages, tools, chat, tokenizer, [1.0, 1.0])
    whole = "".join(p.text for p in conversation(chat, messages, tools, generate=False))
    assert tokenizer.decode(tokens.tolist()) == whole
    edges = np.flatnonzero(np.diff(np.concatenate(([0], own.astype(int), [0]))))
    runs = [tokens[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    assert len(runs) == 3
    parsed = [chat.parse(tokenizer.decode(run), tools) for run in runs]
    assert [p.tool_calls[0].name for p in parsed] == ["read_file", "edit_line", "finish"]
    assert json.loads(parsed[1].tool_calls[0].arguments_json) == {
        "path": "ridge.py",
        "line": 2,
        "text": "    return x + 1",
    }
    stop = tokenizer.special_id(chat.stop_tokens[0])
    assert all(run[-1] == stop for run in runs)
