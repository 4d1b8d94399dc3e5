"""Demonstrations: scripts play the policy's part in the real harness and sandbox; the episodes become SFT data."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import uvloop

from woodshed.grading.heldout import EndlessError
from woodshed.grading.verify import GradeCache, grade, submission_from
from woodshed.harness.loop import run_episode
from woodshed.harness.registry import ToolRegistry
from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.tokenizer import Tokenizer
from woodshed.recipe.recipe import Recipe
from woodshed.record.jsonl import JsonLines
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.rollout.rewards.test_runs import suite_passed
from woodshed.rollout.rewards.tool_use import EDITS
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec

from .boxes import backend_of, layer_store
from .conversations import ConversationError, render_conversations
from .demonstrator import line_script, package_script
from .examples import Example, save_examples
from .failures import StageFailed
from .hinted_demonstrations import HintedDemonstrations
from .pace import Every, Pace
from .render import chat_format, render_conversation
from .scripted import Count, ScriptedEndpoint, contexts
from .tasks import load_split, with_key

log = logging.getLogger(__name__)


def demonstrate(recipe: Recipe, run: RunDirectory) -> None:
    scratch = recipe.policy.source == "scratch"
    tokenizer = Tokenizer.load((run.corpus if scratch else run.policy("pretrain")) / "tokenizer.json")
    chat = chat_format(recipe.policy, run)
    settings, limit = recipe.learn.demonstrations, recipe.learn.sft.max_tokens
    demonstrations = uvloop.run(_play(recipe, run, _counter(chat, tokenizer))) if settings.episodes else []
    tools = ToolRegistry(recipe.harness.tools, recipe.harness).schemas()
    summary = recipe.harness.summary
    examples, verified = [], []
    summaries = 0
    for played in demonstrations:
        parts = contexts(played["messages"], played["weights"], summary.request if summary.trigger_tokens else "")
        summaries += len(parts) - 1
        rendered = [render_conversation(part, tools, chat, tokenizer, weights) for part, weights in parts]
        examples += [Example(tokens[:limit], own[:limit]) for tokens, own in rendered]
        if played["resolved"] and ends_tested(played["messages"]):
            verified += examples[-len(parts) :]
    hinted = _hinted(recipe, run, demonstrations, chat, tokenizer) if settings.hinted else []

    def report(done: int) -> None:
        run.write_progress("demos", 0, 0, f"{done} conversations read")

    try:
        given, cut = render_conversations(settings.conversations, chat, tokenizer, limit, report)
    except ConversationError as error:
        raise StageFailed(f"learn.demonstrations.conversations: {error}") from None
    run.demonstrations.mkdir(exist_ok=True)
    save_examples(run.examples(), [*examples, *hinted, *given])
    save_examples(run.examples(verified=True), [*verified, *hinted, *given])
    total = sum(len(e.tokens) for e in examples)
    share = _solved(demonstrations)
    notes = [f"{len(demonstrations)} episodes, {total / 1e6:.2f}M tokens, {share:.0%} solved, {len(verified)} verified"]
    if given:
        own = sum(len(e.tokens) for e in given)
        notes = notes if settings.episodes else []
        notes.append(f"{len(given)} conversations, {own / 1e6:.2f}M tokens, {cut} of them cut")
    run.write_result_of(
        "demos",
        {
            "episodes": len(demonstrations),
            "summaries": summaries,
            "tokens": total,
            "solved": share,
            "verified": len(verified),
            "hinted": len(hinted),
            "conversations": len(given),
            "cut": cut,
            "note": "; ".join(notes),
        },
    )


def _hinted(
    recipe: Recipe, run: RunDirectory, demonstrations: Sequence[dict[str, Any]], chat: ChatFormat, tokenizer: Tokenizer
) -> list[Example]:
    """Return examples with hints. Each trains one reply, so it does not matter whether the episode was solved."""
    tools = ToolRegistry(recipe.harness.tools, recipe.harness).schemas()
    tasks = {task.name: task for task in _tasks(recipe, run)}
    try:
        maker = HintedDemonstrations(recipe.rl.hints, tasks, chat, tokenizer, tools)
    except ValueError as error:
        raise StageFailed(str(error)) from None
    found = []
    for played in demonstrations:
        rng = random.Random(f"hinted-{recipe.seed}-{played['number']}")
        found += maker.examples(played, recipe.learn.demonstrations.hinted, rng)
    return [e for e in found if len(e.tokens) <= recipe.learn.sft.max_tokens]


def _tasks(recipe: Recipe, run: RunDirectory) -> list[Task]:
    family = recipe.tasks.family
    return load_split(run, family, "sft" if family == "synthetic" else "train")


def ends_tested(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether the last edit of a conversation was followed by a passing test."""
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


def _counter(chat: ChatFormat, tokenizer: Tokenizer) -> Count:
    """Return a function that counts the tokens that the gateway would render."""
    opening = len(tokenizer.encode_pieces(chat.generation()))

    def count(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> int:
        tokens, _ = render_conversation(messages, tools, chat, tokenizer)
        return len(tokens) + (opening if messages[-1]["role"] != "assistant" else 0)

    return count


async def _play(recipe: Recipe, run: RunDirectory, count: Count) -> list[dict[str, Any]]:
    """Play the demonstrations and return them in order.

    Each has ``number``, ``task``, ``resolved``, ``messages``, ``weights`` (loss weight of each reply) and ``events``
    (empty unless hints are shown). A played demonstration is stored in ``demonstrations/played.jsonl`` and not played
    again.
    """
    settings = recipe.learn.demonstrations
    family = recipe.tasks.family
    tasks = _tasks(recipe, run)
    backend = backend_of(recipe.sandbox, run.egress_log, run.placed_boxes)
    layers, grades, grading = layer_store(), GradeCache(), with_key(recipe.grading, run.root)
    rows = JsonLines(run.demonstrations / "played.jsonl")
    played = {row["number"]: row for row in rows.rows()}
    pace, due = Pace(), Every(1.0)
    pace.at(len(played))  # where it begins
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
                summary, drawn = recipe.harness.summary, random.Random(f"summary-{recipe.seed}-{number}")
                endpoint = ScriptedEndpoint(
                    script,
                    request=summary.request,
                    count=count if summary.trigger_tokens else None,
                    plans=lambda: drawn.random() < settings.summary_plan,
                )
                episode = await run_episode(
                    task.instruction, box, endpoint, recipe.harness, test_command=task.info.test_command
                )
                submission = await submission_from(box, task, grading)
            finally:
                await box.close()
            resolved = False
            try:
                resolved = (await grade(task, submission, backend, layers, cache=grades, settings=grading)).resolved
            except EndlessError as error:  # caused by the task or a busy machine; counts as not verified
                log.warning("%s", error)
        played[number] = {
            "number": number,
            "task": task.name,
            "resolved": resolved,
            "messages": episode.messages,
            "weights": endpoint.weights,
            "events": [asdict(event) for event in episode.events] if settings.hinted else [],
        }
        rows.append(played[number])
        if due() or len(played) == settings.episodes:
            note = f"{_solved(played.values()):.0%} solved  {pace.at(len(played))}"
            run.write_progress("demos", len(played), settings.episodes, note)

    try:
        left = [n for n in range(settings.episodes) if n not in played]
        await asyncio.gather(*(one(n, tasks[n % len(tasks)]) for n in left))
    finally:
        await backend.close()
    return [played[n] for n in range(settings.episodes)]
