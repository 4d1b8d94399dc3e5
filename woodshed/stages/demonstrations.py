"""Demonstrations: scripts play the policy's part in the real harness and sandbox; what happened becomes SFT data."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Sequence
from typing import Any

import uvloop

from woodshed.grading.verify import GradeCache, grade, submission_from
from woodshed.harness.endpoint import Reply
from woodshed.harness.loop import run_episode
from woodshed.harness.registry import ToolRegistry
from woodshed.policy.tokenizer import Tokenizer
from woodshed.recipe.recipe import Recipe
from woodshed.record.jsonl import JsonLines
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.rollout.attempts import suite_passed
from woodshed.rollout.rewards.tool_use import EDITS
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec

from .boxes import backend_of, layer_store
from .demonstrator import Script, line_script, package_script
from .examples import Example, save_examples
from .pace import Every, Pace
from .render import chat_format, render_conversation
from .tasks import load_split, with_key


class ScriptedEndpoint:
    """A chat endpoint whose replies come from a script."""

    def __init__(self, script: Script):
        self._script = script
        self._turn = 0
        self.weights: list[float] = []
        """Loss weight of each reply."""
        self.lost_seconds, self.failing = 0.0, ""

    async def complete(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, max_tokens: int
    ) -> Reply:
        try:
            if self._turn == 0:
                action = next(self._script)
            else:
                action = self._script.send(str(messages[-1].get("content") or ""))
        except StopIteration:
            self.weights.append(1.0)
            return Reply({"role": "assistant", "content": "done"})
        self._turn += 1
        self.weights.append(action.weight)
        function = {"name": action.name, "arguments": json.dumps(action.arguments)}
        call = {"id": f"c{self._turn}", "type": "function", "function": function}
        return Reply({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")


def demonstrate(recipe: Recipe, run: RunDirectory) -> None:
    demonstrations = uvloop.run(_play(recipe, run))
    scratch = recipe.policy.source == "scratch"
    tokenizer = Tokenizer.load((run.corpus if scratch else run.policy("pretrain")) / "tokenizer.json")
    chat = chat_format(recipe.policy, run)
    tools = ToolRegistry(recipe.harness.tools, recipe.harness).schemas()
    examples, verified = [], []
    for played in demonstrations:
        tokens, own = render_conversation(played["messages"], tools, chat, tokenizer, played["weights"])
        cut = recipe.learn.sft.max_tokens
        examples.append(Example(tokens[:cut], own[:cut]))
        if played["resolved"] and ends_tested(played["messages"]):
            verified.append(examples[-1])
    save_examples(run.examples(), examples)
    save_examples(run.examples(verified=True), verified)
    total = sum(len(e.tokens) for e in examples)
    share = _solved(demonstrations)
    note = f"{len(examples)} episodes, {total / 1e6:.2f}M tokens, {share:.0%} solved, {len(verified)} verified"
    run.write_result_of(
        "demos",
        {"episodes": len(examples), "tokens": total, "solved": share, "verified": len(verified), "note": note},
    )


def ends_tested(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the last edit of a conversation was followed by a passing test."""
    names = {c["id"]: c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
    tested = False
    for message in messages:
        name = names.get(message.get("tool_call_id", ""), "")
        if name == "run_tests":
            tested = suite_passed(str(message["content"]))
        elif name in EDITS and not str(message["content"]).startswith("error"):
            tested = False
    return tested


def _solved(played: Collection[dict[str, Any]]) -> float:
    return sum(p["resolved"] for p in played) / max(1, len(played))


async def _play(recipe: Recipe, run: RunDirectory) -> list[dict[str, Any]]:
    """Every demonstration in order: ``number``, ``task``, ``resolved``, ``messages`` and ``weights``, the loss weight
    of each reply. Each is in ``demonstrations/played.jsonl`` once it has been played, and is not played again."""
    settings = recipe.learn.demonstrations
    family = recipe.tasks.family
    tasks = load_split(run, family, "sft" if family == "synthetic" else "train")
    backend = backend_of(recipe.sandbox, run.egress_log, run.placed_boxes)
    layers, grades, grading = layer_store(), GradeCache(), with_key(recipe.grading, run.root)
    log = JsonLines(run.demonstrations / "played.jsonl")
    played = {row["number"]: row for row in log.rows()}
    pace, due = Pace(), Every(1.0)
    slots = asyncio.Semaphore(settings.concurrency)

    async def one(number: int, task: Task) -> None:
        async with slots:
            rng = random.Random(f"demo-{recipe.seed}-{number}")
            spec = agent_box_spec(task, layers, limits=recipe.sandbox.limits(), egress=recipe.sandbox.egress())
            box = await create_box(backend, spec, task.info.start)
            try:
                if family == "synthetic":
                    script = line_script(task, rng, settings, recipe.harness.tools)
                else:
                    view, by_line = recipe.harness.output.file_lines, "edit_file" not in recipe.harness.tools
                    script = package_script(task, rng, settings, view, by_line=by_line)
                endpoint = ScriptedEndpoint(script)
                episode = await run_episode(
                    task.instruction, box, endpoint, recipe.harness, test_command=task.info.test_command
                )
                submission = await submission_from(box, task, grading)
            finally:
                await box.close()
            outcome = await grade(task, submission, backend, layers, cache=grades, settings=grading)
        played[number] = {
            "number": number,
            "task": task.name,
            "resolved": outcome.resolved,
            "messages": episode.messages,
            "weights": endpoint.weights,
        }
        log.append(played[number])
        if due() or len(played) == settings.episodes:
            note = f"{_solved(played.values()):.0%} solved  {pace.at(len(played))}"
            run.write_progress("demos", len(played), settings.episodes, note)

    try:
        left = [n for n in range(settings.episodes) if n not in played]
        await asyncio.gather(*(one(n, tasks[n % len(tasks)]) for n in left))
    finally:
        await backend.close()
    return [played[n] for n in range(settings.episodes)]
