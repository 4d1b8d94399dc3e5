"""Measure the cost of a grammar and compare log-probabilities of engine and trainer; writes results/grammar.json.

    python benchmarks/grammar.py [--vocabulary 150000] [--completions 64]

The sets of allowed tokens are computed for every token of one turn (some text, then a call of one of 20 tools), with an
artificial vocabulary of the size of Qwen's. Then a small random policy samples completions under a schema, a batch is
made of them, and the trainer's log-probabilities are compared with those that the engine recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import tokenizers
import torch
from result import write_result
from tokenizers import AddedToken, decoders, models

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.engine.models import decoder, prompt
from tests.rl.test_grammar_batch import END, GRAMMAR, GRAMMARS, batch_of, observed, of_two_turns
from woodshed.engine.grammar import Grammars
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Sampling
from woodshed.policy.formats import get_format
from woodshed.policy.formats.grammar import Reply, to_lark
from woodshed.policy.tokenizer import Tokenizer

TEXT = "Let me look at that file before I change it."
CALL = '\n{"name": "tool_3", "arguments": {"p0": "def f(x): return {x: [1, 2]}", "p1": "src/a.py", "p2": "x"}}\n'


def large_vocabulary(size: int) -> tuple[Tokenizer, dict[str, int]]:
    """Return an artificial tokenizer and its vocabulary: printable ASCII and words of two to eight such characters."""
    rng = random.Random(0)
    characters = [chr(c) for c in range(0x21, 0x7F)] + ["Ġ", "Ċ"]
    words = dict.fromkeys(characters)
    while len(words) < size:
        words["".join(rng.choices(characters, k=rng.randint(2, 8)))] = None
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(t, special=True, normalized=False) for t in get_format("hermes").special_tokens]
    tokenizer.add_special_tokens(control)
    return Tokenizer(tokenizer), vocabulary


def sets(size: int) -> dict[str, float]:
    """Return times and sizes of preparing a vocabulary, compiling a grammar, and computing the sets of a turn."""
    tokenizer, vocabulary = large_vocabulary(size)
    grammars = Grammars(tokenizer)
    began = perf_counter()
    grammars.prepare()
    prepared = perf_counter() - began
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "parameters": {
                    "type": "object",
                    "properties": {f"p{j}": {"type": "string", "description": str(i)} for j in range(6)},
                    "required": ["p0"],
                    "additionalProperties": False,
                },
            },
        }
        for i in range(20)
    )
    node = get_format("hermes").reply_grammar(Reply(tools=tools))
    assert node is not None
    text = to_lark(node, tokenizer.special_ids)
    began = perf_counter()
    grammars.compile(text)
    compiled = perf_counter() - began
    matcher = grammars.start(text, [tokenizer.special_ids["<|im_end|>"]])

    def spelled(said: str) -> list[int]:
        return [vocabulary[{" ": "Ġ", "\n": "Ċ"}.get(c, c)] for c in said]

    marks = [tokenizer.special_ids[t] for t in ("<tool_call>", "</tool_call>")]
    seconds, different = [], set()
    for token in [*spelled(TEXT), marks[0], *spelled(CALL), marks[1]]:
        began = perf_counter()
        different.add(matcher.allowed().tobytes())
        seconds.append(perf_counter() - began)
        matcher.advance([token])
    return {
        "vocabulary": size,
        "prepare_seconds": round(prepared, 2),
        "compile_ms": round(1e3 * compiled, 1),
        "set_ms_median": round(1e3 * median(seconds), 3),
        "set_ms_max": round(1e3 * max(seconds), 2),
        "grammar_bytes": len(text),
        "set_bytes_a_token": len(next(iter(different))),
        "different_sets_share": round(len(different) / len(seconds), 2),
    }


async def gaps(count: int) -> dict[str, float]:
    engine = LocalEngine(decoder(), grammars=GRAMMARS)
    start = prompt(8, seed=1)
    asks = [Sampling(max_tokens=60, seed=i, stop_ids=(END,), grammar=GRAMMAR) for i in range(count)]
    done = await asyncio.gather(*(engine.generate(start, ask) for ask in asks))
    group = []
    for i, one in enumerate(done):
        more = [*start, *one.tokens, *prompt(4, seed=i)]
        two = await engine.generate(more, Sampling(max_tokens=6, seed=i, stop_ids=(END,)))
        group.append(of_two_turns(i, start, one, more, two, constrained=False))
    await engine.close()
    seen = observed(decoder(), batch_of(group))
    return {
        "completions": count,
        "logprob_gap": float(torch.cat(seen.dlogp).abs().max()),
        "ratio_gap": float((torch.cat(seen.importance) - 1).abs().max()),
        "tokens_under_grammar": sum(len(one.tokens) for one in done),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    detail: dict[str, Any] = {"turn": TEXT + CALL, "schema": json.dumps(GRAMMAR)}
    figures: dict[str, float | None] = {**sets(given.vocabulary), **asyncio.run(gaps(given.completions))}
    write_result("grammar", figures, detail, given.out)


if __name__ == "__main__":
    main()
