"""Render conversations to tokens for supervised learning, exactly as the gateway would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodshed.policy.formats import get_format
from woodshed.policy.formats.base import ChatFormat, text_content
from woodshed.policy.settings import PolicySettings
from woodshed.policy.tokenizer import Piece, Tokenizer
from woodshed.record.run_directory import RunDirectory


def render_conversation(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    chat: ChatFormat,
    tokenizer: Tokenizer,
    reply_weights: Sequence[float] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return (tokens int32 ``[T]``, loss weights float32 ``[T]``).

    Tokens that the policy itself would have sampled, including stop tokens, have weight 1, or their reply's entry of
    ``reply_weights``; all others 0. Raises ValueError if ``reply_weights`` does not have one entry per reply.
    """
    rest = list(messages)
    system = text_content(rest.pop(0)) if rest and rest[0].get("role") == "system" else None
    tokens = tokenizer.encode_pieces(chat.open(tools, system))
    weights = [0.0] * len(tokens)
    opening = chat.generation()
    replies = [m for m in rest if m["role"] == "assistant"]
    each = iter([1.0] * len(replies) if reply_weights is None else reply_weights)
    if reply_weights is not None and len(reply_weights) != len(replies):
        raise ValueError(f"{len(reply_weights)} weights for {len(replies)} replies")
    for message, pieces in zip(rest, chat.messages(rest, tools), strict=True):
        if message["role"] == "assistant":
            head, body = tokenizer.encode_pieces(opening), tokenizer.encode_pieces(_after(pieces, opening))
            weights += [0.0] * len(head) + [next(each)] * len(body)
        else:
            head, body = tokenizer.encode_pieces(pieces), []
            weights += [0.0] * len(head)
        tokens += head + body
    return np.asarray(tokens, np.int32), np.asarray(weights, np.float32)


def _after(pieces: Sequence[Piece], opening: Sequence[Piece]) -> list[Piece]:
    """Return the rest of ``pieces`` after ``opening``. Raises ValueError if they do not begin with it."""
    rest = list(pieces)
    for piece in opening:
        if not rest or rest[0].special != piece.special or not rest[0].text.startswith(piece.text):
            raise ValueError("the chat format's assistant message does not begin with its generation prompt")
        left = rest[0].text[len(piece.text) :]
        rest = ([Piece(left, rest[0].special)] if left else []) + rest[1:]
    return rest


def chat_format(settings: PolicySettings, run: RunDirectory) -> ChatFormat:
    """Return the run's chat format. That of a pretrained policy is only known after its conversion."""
    if settings.source != "scratch":
        from woodshed.policy.hf import stored_format  # imports torch, which stages without a network do not need

        return stored_format(run.policy("pretrain"))
    return get_format("compact" if settings.format == "auto" else settings.format)
