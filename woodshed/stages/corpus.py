"""Tokenizer and pretraining text for a policy from scratch: conversations that repair generated functions.

Only functions of the ``sft`` split are used; the keys of RL, development and held-out tasks never appear. Nothing is
executed here: the test output and the failed attempts in these conversations are made up, and have the loss weight
``context_weight``, by default 0. The demonstrations of SFT, in contrast, are executed.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from woodshed.harness.registry import ToolRegistry
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.stages import CorpusSettings
from woodshed.record.python_source import parse_python
from woodshed.record.run_directory import RunDirectory
from woodshed.tasks.generators.synthetic.function import SyntheticFunction, draw_functions
from woodshed.tasks.generators.synthetic.spec import NOUNS
from woodshed.tasks.languages.python import Mutation, mutations, pick

from .demonstrator import broken_line
from .edits import edit_line_call
from .examples import Example, save_examples
from .failures import StageFailed
from .render import chat_format, render_conversation

Message = dict[str, Any]
Conversation = tuple[list[Message], list[float]]
"""Messages, and the loss weight of each reply."""


def make_corpus(recipe: Recipe, run: RunDirectory) -> None:
    settings = recipe.learn.corpus
    rng = random.Random(f"corpus-{recipe.seed}")
    run.write_progress("corpus", 0, settings.tokens, "drawing functions")
    functions = draw_functions(settings.functions, recipe.seed, "sft")
    library = list(library_functions(limit=2000))
    tools = ToolRegistry(recipe.harness.tools, recipe.harness).schemas()
    chat = chat_format(recipe.policy, run)
    seen = conversations(rng, functions, library, settings, recipe.harness.tools)
    sample = [next(seen) for _ in range(1500)]
    tokenizer = Tokenizer(train_bpe(_texts(sample), recipe.policy.vocab_size, chat.special_tokens))
    run.corpus.mkdir(parents=True, exist_ok=True)
    tokenizer.save(run.corpus / "tokenizer.json")
    examples: list[Example] = []
    total = 0
    while total < settings.tokens:
        messages, replies = sample.pop() if sample else next(seen)
        tokens, own = render_conversation(messages, tools, chat, tokenizer, replies)
        if len(tokens) > recipe.policy.max_positions:
            raise StageFailed(
                f"a conversation of the corpus takes {len(tokens)} tokens in the chat format {chat.name!r} and "
                f"policy.max_positions is {recipe.policy.max_positions}: raise it, or name fewer harness.tools"
            )
        weights = np.where(own > 0, own, settings.context_weight).astype(np.float32)
        weights[0] = 0.0
        examples.append(Example(tokens, weights))
        total += len(tokens)
        if len(examples) % 200 == 0:
            run.write_progress("corpus", total, settings.tokens, "rendering conversations")
    save_examples(run.corpus / "examples.npz", examples)
    single = sum(len(tokenizer.encode(f" {noun}")) == 1 for noun in NOUNS)
    note = f"{total / 1e6:.2f}M tokens, {len(examples)} conversations; {single} of {len(NOUNS)} names are one token"
    run.write_result_of("corpus", {"tokens": total, "note": note})


def conversations(
    rng: random.Random,
    functions: list[SyntheticFunction],
    library: list[str],
    settings: CorpusSettings,
    tools: Collection[str],
) -> Iterator[Conversation]:
    """Yield repair conversations without end. Only correct edits have a loss weight: pretraining teaches where and how
    to edit."""
    known: dict[str, list[Mutation]] = {}

    def mutated(source: str) -> Mutation | None:
        if source not in known:
            known[source] = mutations(source)
        return pick(rng, known[source]) if known[source] else None

    while True:
        names = rng.sample(NOUNS, 3)
        if library and rng.random() < settings.library_share:
            if mutation := mutated(rng.choice(library)):
                yield _read_and_fix(names[0], mutation, tools)
            continue
        function = rng.choice(functions)
        mutation = mutated(function.source)
        if mutation is None:
            continue
        if rng.random() < settings.protocol_share:
            retries = rng.randint(1, 2) if rng.random() < settings.retry_share else 0
            yield _protocol(rng, names, function, mutation, retries, tools)
        else:
            yield _read_and_fix(names[0], mutation, tools)


def _read_and_fix(name: str, mutation: Mutation, tools: Collection[str]) -> Conversation:
    path = f"{name}.py"
    messages = [{"role": "user", "content": f"fix: {name}"}, *_view(path, mutation), _fix(path, mutation, tools)]
    return messages, [1.0, 1.0]


def _protocol(
    rng: random.Random,
    names: list[str],
    function: SyntheticFunction,
    mutation: Mutation,
    retries: int,
    tools: Collection[str],
) -> Conversation:
    path = f"{names[0]}.py"
    order = rng.sample(names, 3)
    case, other = rng.sample(function.cases, 2)
    arguments = ", ".join(map(repr, case.args))
    failure = f"FAIL {names[0]}\n{_clip(f'{function.name}({arguments})', 44)}\nwant {_clip(repr(case.want), 28)}\n"
    got = other.want if other.want != case.want else None
    test = [_call("run_tests"), _result(failure + f"got {_clip(repr(got), 28)}")]
    messages = [{"role": "user", "content": f"fix: {' '.join(order)}"}, *test, *_view(path, mutation)]
    weights = [1.0, 1.0]
    fix = (mutation.line, mutation.before)
    wrong = [m for m in mutations(mutation.source) if (m.line, m.after) != fix]
    for _ in range(retries if wrong else 0):
        attempt = pick(rng, wrong)
        if rng.random() < 0.5:
            text = broken_line(rng, attempt.after, mutation.source)
            edit = _edit(tools, path, attempt.line, attempt.before, text)
            tried = [edit, _result("error: syntax error")]
        else:
            edit = _edit(tools, path, attempt.line, attempt.before, attempt.after)
            tried = [edit, _result("ok"), *test, _call("undo"), _result("ok")]
        tried += _view(path, mutation)
        messages += tried
        weights += [0.0] + [1.0] * (len(tried) // 2 - 1)
    messages += [_fix(path, mutation, tools), _result("ok")]
    weights.append(1.0)
    if rng.random() < 0.7:
        messages += [_call("run_tests"), _result("PASS 18"), _call("finish")]
        weights += [1.0, 1.0]
    return messages, weights


def _view(path: str, mutation: Mutation) -> list[Message]:
    return [_call("read_file", path=path), _result(_numbered(mutation.source))]


def _fix(path: str, mutation: Mutation, tools: Collection[str]) -> Message:
    return _edit(tools, path, mutation.line, mutation.after, mutation.before)


def _edit(tools: Collection[str], path: str, line: int, old: str, new: str) -> Message:
    name, arguments = edit_line_call(tools, path, line, old, new)
    return _call(name, **arguments)


def library_functions(limit: int) -> Iterator[str]:
    """Yield short functions (3 to 12 lines) of Python's standard library, normalised, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "__pycache__", "ensurepip"}
    found = 0
    for path in sorted(root.rglob("*.py")):
        if skipped & set(path.relative_to(root).parts):
            continue
        try:
            tree = parse_python(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, OSError, ValueError):
            continue
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or node.decorator_list:
                continue
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or node.body
            source = ast.unparse(node) + "\n"
            if 3 <= source.count("\n") <= 12 and len(source) < 500 and source.isascii():
                yield source
                found += 1
                if found >= limit:
                    return


def _texts(conversations: list[Conversation]) -> Iterator[str]:
    """Yield the texts on which the tokenizer is trained; every module name occurs often enough to become one token."""
    for messages, _ in conversations:
        for message in messages:
            if message.get("content"):
                yield str(message["content"])
            for call in message.get("tool_calls", ()):
                arguments = json.loads(call["function"]["arguments"])
                yield "\n" + str(arguments.get("text") or f" {arguments.get('old', '')}\t {arguments.get('new', '')}")
    for noun in NOUNS:
        for _ in range(400):
            yield f" {noun}.py"
    for verb in ("read", "edit", "test", "undo", "submit", "fix:", "PASS", "FAIL", "\nwant", "\ngot", "error", "ok"):
        for _ in range(400):
            yield verb


def _call(name: str, **arguments: object) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def _result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def _numbered(source: str) -> str:
    return "".join(f"\n{n}{line}" for n, line in enumerate(source.rstrip("\n").split("\n"), 1))


def _clip(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 2] + ".."
