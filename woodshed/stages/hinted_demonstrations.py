"""Demonstrations of what a hint means: a rejected call is replaced by the hint and the call that should have been made.

A policy from scratch has never seen a hint, so a teacher that reads one would not differ from the student. Only replies
whose calls were all rejected are replaced: they changed nothing, so the following replies are still valid without them.

A rejected edit is replaced by the next accepted edit. Scripts read the file again in between; if this read were used, a
policy would learn that a hint means "read the file". Only if the file had not been read before the rejected edit is
the reply that follows it used.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.tokenizer import Tokenizer
from woodshed.record.task import Task
from woodshed.record.trajectory import ToolEvent, Trajectory
from woodshed.rl.hints import Hinter, HintSettings, HintStats, renderer, usages
from woodshed.rl.hints.replies import Reply, replies_of
from woodshed.rollout.rewards.tool_use import EDITS

from .examples import Example
from .render import render_conversation


class HintedDemonstrations:
    """Makes examples with hints from demonstrations. Raises ValueError if the chat format cannot show a hint."""

    def __init__(
        self,
        settings: HintSettings,
        tasks: Mapping[str, Task],
        chat: ChatFormat,
        tokenizer: Tokenizer,
        schemas: Sequence[dict[str, Any]],
    ) -> None:
        self.chat, self.tokenizer, self.schemas = chat, tokenizer, schemas
        self.render = renderer(chat, tokenizer, settings.role)
        counted = settings.model_copy(update={"weight": 0.0})
        self.hinter = Hinter(counted, tasks, tools=usages(chat, schemas))

    def examples(self, played: Mapping[str, Any], share: float, rng: random.Random) -> list[Example]:
        """Return examples of one demonstration. Each ends with the reply after the hint; only its tokens have a weight.

        ``played``: ``task``, ``messages``, ``weights`` (of replies) and ``events``, see ``demonstrations._play``.
        ``share``: share of the possible examples to make.
        """
        messages, events = played["messages"], [ToolEvent(**event) for event in played["events"]]
        run = Trajectory("", played["task"], "", "train", "", "", "submitted", messages=messages, events=events)
        replies = replies_of(run)
        places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        texts = self.hinter.find(run, replies, HintStats())
        found = []
        for number, own in sorted(texts.items()):
            rejected = [events[index].error is not None for index in replies[number].events]
            if not rejected or not all(rejected):
                continue
            after = _instead(number, replies, events)
            if after is None or after in texts or played["weights"][after] <= 0 or rng.random() >= share:
                continue
            before, reply = messages[: places[number]], messages[places[after]]
            head, _ = self._tokens(before, [0.0] * number)
            tokens, weights = self._tokens([*before, reply], [0.0] * number + [1.0])
            hint = np.array(self.render("\n".join(own)), np.int32)
            at = len(head)
            weights = np.insert(weights, at, np.zeros(len(hint), np.float32))
            found.append(Example(np.concatenate((tokens[:at], hint, tokens[at:])), weights))
        return found

    def _tokens(self, messages: Sequence[dict[str, Any]], weights: Sequence[float]) -> tuple[Any, Any]:
        return render_conversation(messages, self.schemas, self.chat, self.tokenizer, weights)


def _instead(number: int, replies: Sequence[Reply], events: Sequence[ToolEvent]) -> int | None:
    """Return the number of the reply that replaces the rejected reply ``number``; None if there is none."""
    following = number + 1 if number + 1 < len(replies) else None
    if not any(events[index].name in EDITS for index in replies[number].events):
        return following
    before = events[: min(replies[number].events)]
    read = {_path(event) for event in before if event.name == "read_file" and event.error is None}
    for after in range(number + 1, len(replies)):
        for index in replies[after].events:
            event = events[index]
            if event.name in EDITS and event.error is None:
                if event.name == "undo":
                    return None
                return after if _path(event) in read else following
    return None


def _path(event: ToolEvent) -> str:
    return str((event.arguments or {}).get("path"))
