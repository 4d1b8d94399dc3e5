"""Turns the findings of the triggers into the sequences that the teacher of ``hint_kl`` reads.

The teacher's context of a message is the recorded tokens before it, followed by the hint as one more message of the
conversation in the policy's chat format. Recorded text is never tokenized again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from woodshed.harness.tools.base import clean
from woodshed.record.settings import is_reference
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.train.hinted import HintedMessage

from .replies import Reply, Unplaced, places_of, repeated, replies_of
from .settings import HintSettings
from .triggers import SeenEpisode, load_trigger

if TYPE_CHECKING:  # a tokenizer is imported by those who mark messages, not by those who load a recipe
    from woodshed.policy.formats.base import ChatFormat
    from woodshed.policy.tokenizer import Piece, Tokenizer

log = logging.getLogger(__name__)

Render = Callable[[str], Sequence[int]]
"""Returns the token ids of a hint as a message of the conversation."""
Marks = list[tuple[HintedMessage, ...]]
"""For each segment of a trajectory, its marked messages."""


class HintError(Exception):
    """A user-defined trigger raised, or returned an invalid hint; the message names the trigger."""


@dataclass
class HintStats:
    """Counts over the compared episodes of a batch, including those with weight 0.

    ``found``: findings per trigger; ``rate``: the same per episode. ``messages``, ``tokens``: number of marked messages
    and their tokens. ``over_limit``: messages beyond ``per_trajectory``; ``over_share``: beyond ``token_share``;
    ``too_long``: messages whose context with the hint exceeds the policy's maximum length. ``unplaced``: episodes whose
    conversation, calls and tokens do not match.
    """

    episodes: int = 0
    found: dict[str, int] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)
    messages: int = 0
    tokens: int = 0
    over_limit: int = 0
    over_share: int = 0
    too_long: int = 0
    unplaced: int = 0


def renderer(chat: ChatFormat, tokenizer: Tokenizer, role: str) -> Render:
    """Return a function that renders hints. Raises ValueError if the chat format cannot show messages of ``role``."""
    from woodshed.policy.formats.base import FormatError

    def pieces(text: str) -> list[Piece]:
        message = {
            "role": role,
            "content": f"Hint: {clean(text)}",
            **({"tool_call_id": "hint"} if role == "tool" else {}),
        }
        return chat.message(message, [])

    def render(text: str) -> list[int]:
        return tokenizer.encode_pieces(pieces(text))

    try:
        shown = pieces("x")
    except FormatError as error:
        raise ValueError(f"rl.hints.role: chat format {chat.name}: {error}") from None
    if not shown:
        raise ValueError(f"rl.hints.role: chat format {chat.name} shows no {role} messages; choose another role")
    if any(piece.special and piece.text == chat.begin_token for piece in shown):
        raise ValueError(
            f"rl.hints.role: in chat format {chat.name} a {role} message begins a conversation; choose another role"
        )
    return render


def usages(chat: ChatFormat, schemas: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the usage line of each tool by name, for ``SeenEpisode.tools``: the verb's form in the ``compact`` format,
    else ``name(arguments)`` with optional arguments in brackets."""
    from woodshed.policy.formats.verbs import verbs_of

    if chat.name == "compact":
        return {name: verb.usage for name, verb in verbs_of(schemas).by_name.items()}
    found = {}
    for function in (schema["function"] for schema in schemas):
        parameters = function.get("parameters", {})
        needed = parameters.get("required", ())
        names = [n if n in needed else f"[{n}]" for n in parameters.get("properties", {})]
        found[function["name"]] = f"{function['name']}({', '.join(names)})"
    return found


class Hinter:
    """Runs the triggers on episodes and marks the messages that get a hint.

    ``tasks``: by name; ``tools``: see ``SeenEpisode``. ``render`` and ``max_positions`` (maximum sequence length of the
    policy) are needed if ``settings.weight`` is above 0. ``summaries``: mark summaries too (``rl.train_summaries``);
    else marks there would count as something to learn, with a weight of 0.
    """

    def __init__(
        self,
        settings: HintSettings,
        tasks: Mapping[str, Task],
        *,
        tools: Mapping[str, str] | None = None,
        render: Render | None = None,
        max_positions: int = 0,
        summaries: bool = True,
    ) -> None:
        if settings.weight and (render is None or max_positions < 1):
            raise ValueError("Hinter: a weight above 0 needs render and max_positions")
        self.settings, self.tasks, self.tools = settings, tasks, dict(tools or {})
        self.render, self.max_positions, self.summaries = render, max_positions, summaries
        self.triggers = {name: load_trigger(name) for name in settings.triggers}

    @property
    def weight(self) -> float:
        return self.settings.weight

    def mark(self, trajectory: Trajectory, stats: HintStats) -> Marks:
        """Return the marked messages of each segment, and add the counts to ``stats``. Raises HintError."""
        marks: list[list[HintedMessage]] = [[] for _ in trajectory.segments]
        stats.episodes += 1
        try:
            texts = self.find(trajectory, replies_of(trajectory), stats)
            places = places_of(trajectory) if texts and self.weight else []
        except Unplaced:
            stats.unplaced += 1
            texts, places = {}, []
        for name in self.triggers:
            stats.rate[name] = stats.found.get(name, 0) / stats.episodes
        if not places or self.render is None:
            return [()] * len(marks)
        at = {number: places[number - repeated(trajectory)] for number in sorted(texts)}
        if not self.summaries:
            summarised = {(segment, start) for segment, start, _ in trajectory.summaries}
            at = {number: place for number, place in at.items() if (place.segment, place.start) not in summarised}
        chosen = list(at)[: self.settings.per_trajectory]
        stats.over_limit += len(at) - len(chosen)
        for number in chosen:
            place = at[number]
            tokens = trajectory.segments[place.segment].tokens
            hint = np.array(self.render("\n".join(texts[number])), np.int32)
            context = np.concatenate((tokens[: place.begin], hint, tokens[place.begin : place.start]))
            if len(context) + place.end - place.start > self.max_positions:
                stats.too_long += 1
                continue
            marks[place.segment].append(HintedMessage(place.start, place.end, context))
            stats.messages += 1
            stats.tokens += place.end - place.start
        return [tuple(messages) for messages in marks]

    def limited(self, marked: Sequence[Marks], sampled: int, stats: HintStats) -> list[Marks]:
        """Return ``marked``, the marks of all episodes of a batch with ``sampled`` sampled tokens, without the messages
        beyond ``token_share``, and correct the counts of ``stats``."""
        ranked = []  # (number in its episode, tokens, episode, segment, message)
        for episode, marks in enumerate(marked):
            places = [(segment, message) for segment, messages in enumerate(marks) for message in messages]
            for number, (segment, message) in enumerate(places):
                ranked.append((number, message.end - message.start, episode, segment, message))
        ranked.sort(key=lambda entry: entry[:4])
        left = self.settings.token_share * sampled
        kept: list[list[list[HintedMessage]]] = [[[] for _ in marks] for marks in marked]
        for _, tokens, episode, segment, message in ranked:
            if tokens <= left:
                left -= tokens
                kept[episode][segment].append(message)
            else:
                stats.messages -= 1
                stats.tokens -= tokens
                stats.over_share += 1
        return [[tuple(messages) for messages in marks] for marks in kept]

    def find(self, trajectory: Trajectory, replies: Sequence[Reply], stats: HintStats) -> dict[int, list[str]]:
        """Return the distinct hint texts of each reply, by its number, without those that a fork repeats: they count in
        its parent. ``stats.found`` counts a trigger once per reply. Raises HintError."""
        seen = SeenEpisode(self.tasks[trajectory.task], trajectory, replies, self.tools)
        texts: dict[int, list[str]] = {}
        for name, trigger in self.triggers.items():
            known: set[int] = set()
            try:
                for hint in trigger(seen):
                    placed = isinstance(hint.reply, (int, np.integer)) and 0 <= hint.reply < len(replies)
                    if not placed or not isinstance(hint.text, str) or not hint.text.strip():
                        raise ValueError(f"{hint!r} is no hint for one of {len(replies)} replies")
                    if hint.reply < repeated(trajectory):
                        continue
                    known.add(hint.reply)
                    own = texts.setdefault(hint.reply, [])
                    if hint.text not in own:
                        own.append(hint.text)
            except Exception as error:  # a user's function may raise anything
                if is_reference(name):
                    raise HintError(f"rl.hints.triggers: {name}: {type(error).__name__}: {error}") from error
                # a bug in a built-in trigger must not let a policy end the run
                log.exception("trigger %s failed on %s", name, trajectory.id)
            stats.found[name] = stats.found.get(name, 0) + len(known)
        return texts
