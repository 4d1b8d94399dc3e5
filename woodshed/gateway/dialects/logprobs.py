"""Log-probabilities in requests and replies of OpenAI's APIs."""

from __future__ import annotations

from typing import Any

from woodshed.engine.protocol import MOST_TOP_LOGPROBS, Completion
from woodshed.gateway.errors import invalid, unsupported
from woodshed.gateway.fields import number
from woodshed.gateway.messages import Message
from woodshed.policy.tokenizer import Tokenizer

_MODES = {"raw": True, "sampled": False}


def asked_logprobs(data: dict[str, Any], on: bool, switch: str) -> dict[str, Any]:
    """Return the fields of ``Request`` about log-probabilities. ``on``: True if they are requested; ``switch``: the
    request field that requests them, for errors.

    ``logprobs_mode`` is an extension of this server: ``raw`` means those of the policy, ``sampled`` those of the
    distribution that is sampled from.
    """
    top = data.get("top_logprobs")
    if top is not None and not isinstance(top, int):
        raise invalid("top_logprobs", f"must be an integer from 0 to {MOST_TOP_LOGPROBS}")
    count = int(number(data, "top_logprobs", 0, 0, MOST_TOP_LOGPROBS))
    mode = data.get("logprobs_mode")
    if mode is not None and (not isinstance(mode, str) or mode not in _MODES):
        raise unsupported("logprobs_mode", mode, "raw or sampled")
    for name, given in (("top_logprobs", count), ("logprobs_mode", mode)):
        if given and not on:
            raise invalid(name, f"needs {switch}")
    return {"logprobs": on, "top_logprobs": count, "raw_logprobs": None if mode is None else _MODES[mode]}


def logprob_items(completion: Completion, tokenizer: Tokenizer, part: slice = slice(None)) -> list[dict[str, Any]]:
    """One entry per token of ``part``, including a stop token; natural logarithms."""
    items = []
    tops = [report.top for report in completion.reports or ()] or [()] * len(completion.tokens)
    logprobs = [report.logprob for report in completion.reports or ()] or completion.logprobs
    for token, logprob, top in zip(completion.tokens[part], logprobs[part], tops[part]):
        item = _entry(token, logprob, tokenizer)
        items.append({**item, "top_logprobs": [_entry(other, value, tokenizer) for other, value in top]})
    return items


def tokens_of_text(completion: Completion, tokenizer: Tokenizer, reply: Message) -> slice:
    """Return the slice of the tokens of the reply's text, without thinking, calls and control tokens of the chat
    format. All tokens if the sampled text does not contain this text literally, for example with incomplete
    characters."""
    pieces = [tokenizer.token_bytes(token) for token in completion.tokens]
    whole, text = b"".join(pieces), (reply.get("content") or "").encode("utf-8", "replace")
    if not text:
        return slice(0, 0)
    thinking = (reply.get("reasoning_content") or "").encode("utf-8", "replace")
    start = whole.find(text, max(0, whole.find(thinking)) + len(thinking))
    if start < 0:
        return slice(None)
    first, last, position = None, 0, 0
    for i, piece in enumerate(pieces):
        position += len(piece)
        if first is None and position > start:
            first = i
        if position >= start + len(text):
            last = i + 1
            break
    return slice(first, last)


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
