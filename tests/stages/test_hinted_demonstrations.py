"""SFT examples with hints: the rejected call is gone, the hint stands there, and only the reply after it weighs."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tests.gateway.parts import TOKENIZERS
from tests.rl.hints.episodes import HERMES, TASKS, scripted
from woodshed.harness.loop import registry_for
from woodshed.harness.settings import OutputSettings
from woodshed.policy.formats import get_format
from woodshed.rl.hints import HintSettings
from woodshed.stages.hinted_demonstrations import HintedDemonstrations
from woodshed.stages.render import render_conversation

TINY = HERMES.model_copy(update={"tools": ("read_file", "edit_line", "finish"), "output": OutputSettings(separator="")})
SCRIPT = ("nosuch x", "read ridge.py", "edit ridge.py\n2    return (", "edit ridge.py\n2    return x + 1", "submit")


def played(weights: tuple[float, ...] = (0, 1, 0, 1, 1)) -> dict[str, Any]:
    run = scripted(*SCRIPT, settings=TINY, format="compact")
    events = [asdict(event) for event in run.events]
    return {"task": run.task, "messages": run.messages, "weights": list(weights), "events": events}


def maker(role: str = "tool") -> HintedDemonstrations:
    schemas = registry_for(TINY).schemas()
    return HintedDemonstrations(HintSettings(role=role), TASKS, get_format("compact"), TOKENIZERS["compact"], schemas)


def test_the_hint_stands_where_the_mistake_was() -> None:
    tokenizer = TOKENIZERS["compact"]
    first, second = maker().examples(played(), 1.0, random.Random(0))
    text = tokenizer.decode(first.tokens.tolist())
    assert text.startswith("<bos>repair ridge.py<obs>Hint: There is no tool 'nosuch'. The tools are: read {path}")
    assert text.endswith("<call>read ridge.py<end>") and "<call>nosuch" not in text
    for example, reply in ((first, "read ridge.py<end>"), (second, "edit ridge.py\n2    return x + 1<end>")):
        assert tokenizer.decode(example.tokens[example.weights > 0].tolist()) == reply
        assert len(example.tokens) == len(example.weights) and example.weights.max() == 1
    text = tokenizer.decode(second.tokens.tolist())
    assert "<call>nosuch x<end>" in text, "an earlier mistake stays in the context"
    assert "<obs>Hint: Write code that parses; this edit of ridge.py does not" in text and "return (<end>" not in text


def test_the_rest_is_what_a_demonstration_without_the_mistake_looks_like() -> None:
    made, given = maker(), played()
    (first, _) = made.examples(given, 1.0, random.Random(0))
    kept = [given["messages"][0], next(m for m in given["messages"][2:] if m["role"] == "assistant")]
    plain, weights = render_conversation(kept, made.schemas, made.chat, made.tokenizer)
    start = len(made.tokenizer.encode("<bos>repair ridge.py", allow_special=True))
    added = len(first.tokens) - len(plain)
    np.testing.assert_array_equal(np.delete(first.tokens, slice(start, start + added)), plain)
    np.testing.assert_array_equal(np.delete(first.weights, slice(start, start + added)), weights)


def test_what_is_not_shown() -> None:
    made = maker()
    assert len(made.examples(played((0, 1, 0, 0, 1)), 1.0, random.Random(0))) == 1, "a reply that is not to be learned"
    assert made.examples(played(), 0.0, random.Random(0)) == []
    counts = [len(made.examples(played(), 0.5, random.Random(seed))) for seed in range(20)]
    assert set(counts) == {0, 1, 2}
    with pytest.raises(ValueError, match=r"rl\.hints\.role"):
        maker("system")


def test_in_place_of_an_edit_stands_the_next_accepted_edit_and_no_look_at_the_file() -> None:
    script = ("read ridge.py", "edit ridge.py\n2    return (", "read ridge.py", *SCRIPT[2:])
    run = scripted(*script, settings=TINY, format="compact")
    given = {"task": run.task, "messages": run.messages, "events": [asdict(event) for event in run.events]}
    made, tokenizer = maker(), TOKENIZERS["compact"]
    both = made.examples(given | {"weights": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]}, 1.0, random.Random(0))
    for example, looks in zip(both, (1, 2), strict=True):
        text = tokenizer.decode(example.tokens.tolist())
        assert text.count("<call>read ridge.py<end>") == looks and text.count("<obs>Hint: ") == 1
        right = tokenizer.decode(example.tokens[example.weights > 0].tolist())
        assert right == "edit ridge.py\n2    return x + 1<end>"
    assert made.examples(given | {"weights": [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]}, 1.0, random.Random(0)) == []


def test_a_file_that_was_not_read_is_read_first() -> None:
    script = ("edit ridge.py\n2    return (", "read ridge.py", "edit ridge.py\n2    return x + 1", "submit")
    run = scripted(*script, settings=TINY, format="compact")
    given = {"task": run.task, "messages": run.messages, "events": [asdict(event) for event in run.events]}
    (example,) = maker().examples(given | {"weights": [0.0, 1.0, 1.0, 1.0]}, 1.0, random.Random(0))
    assert TOKENIZERS["compact"].decode(example.tokens[example.weights > 0].tolist()) == "read ridge.py<end>"
