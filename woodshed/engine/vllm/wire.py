"""Wire format of vLLM's ``/inference/v1/generate``, as of vLLM 0.32 (``--enable-scale-out``).

A request is JSON. A reply is server-sent events: chunks with one choice (``token_ids``, ``logprobs.content``; in the
last one ``finish_reason``, ``weight_versions`` as spans over all sampled tokens, ``routed_experts`` as a base64
``.npy``), one with ``usage``, then ``[DONE]``.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.protocol import Sampling, StopReason, TokenReport

UNTOUCHED = "default"
"""vLLM's label for the weights it started with."""
NEVER = -1e9
"""A logit bias that forbids a token; JSON has no infinity."""
_MASKED = -9000.0
"""Log-probabilities below this are zero probabilities, which vLLM writes as -9999."""
_REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length", "abort": "cancelled"}
_MIX = 0x9E3779B97F4A7C15


def encode_ask(
    tokens: Sequence[int], sampling: Sampling, *, request: str, most: int, salt: str | None, routes_from: int
) -> bytes:
    """Encode the body of a request. ``most``: number of tokens left in the context, which limits ``max_tokens``.
    ``routes_from``: number of first prompt tokens whose routes are not requested."""
    params: dict[str, Any] = {
        "max_tokens": min(sampling.max_tokens, most),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # stop_ids has all tokens that end a completion
        # 0 requests only the sampled token, which always takes one of the places, so alternatives need one more
        "logprobs": sampling.top_logprobs + 1 if sampling.top_logprobs else 0,
        "detokenize": False,
        "routed_experts_prompt_start": routes_from,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.seed is not None:
        params["seed"] = seed_of(sampling.seed, sampling.drawn)
    if sampling.logit_bias:
        params["logit_bias"] = {str(t): NEVER if b == -math.inf else b for t, b in sampling.logit_bias.items()}
    body: dict[str, Any] = {
        "request_id": request,
        "token_ids": list(tokens),
        "sampling_params": params,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if salt is not None:
        body["cache_salt"] = salt
    return json.dumps(body).encode()


def seed_of(seed: int, drawn: int) -> int:
    """Return the seed for vLLM. vLLM cannot skip random numbers, so a completion that continues after ``drawn`` tokens
    gets another seed, derived from both."""
    return seed % (1 << 63) if not drawn else ((seed + 1) * _MIX + drawn) % (1 << 63)


class Events:
    """Parses server-sent events from the pieces of a body."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | None]:
        """Yield each complete event, and None for the end. Raises ValueError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                yield None
                continue
            event = json.loads(text)
            if not isinstance(event, dict):
                raise ValueError(f"an event is not a JSON object: {text[:80]!r}")
            yield event


def read_tokens(choice: dict[str, Any], vocabulary: int | None = None) -> list[tuple[int, float]]:
    """Return pairs (token, log-probability) of a chunk. Raises ValueError if tokens and log-probabilities do not match,
    or if a token is not in the vocabulary."""
    tokens = choice.get("token_ids") or []
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens came with {len(content)} log-probabilities")
    pairs = []
    for token, entry in zip(tokens, content):
        if type(token) is not int or token < 0 or (vocabulary is not None and token >= vocabulary):
            raise ValueError(f"{token!r} is not a token of the policy")
        if entry.get("token_id") != token or not isinstance(entry.get("logprob"), int | float):
            raise ValueError(f"the log-probability beside token {token} is of {entry.get('token_id')!r}")
        pairs.append((token, float(entry["logprob"])))
    return pairs


def read_reports(choice: dict[str, Any], sampling: Sampling) -> list[TokenReport]:
    """Return the reports of a chunk's tokens, after ``read_tokens`` has checked the chunk. Raises ValueError."""
    reports = []
    for entry in (choice.get("logprobs") or {}).get("content") or []:
        places = entry.get("top_logprobs") or []
        if any(type(p.get("token_id")) is not int or not isinstance(p.get("logprob"), int | float) for p in places):
            raise ValueError("top_logprobs has an entry without a token or a log-probability")
        possible = {p["token_id"]: float(p["logprob"]) for p in places if p["logprob"] > _MASKED}
        ranked = sorted(possible.items(), key=lambda pair: -pair[1])
        reports.append(TokenReport(float(entry["logprob"]), tuple(ranked[: sampling.top_logprobs])))
    return reports


def read_reason(reason: Any) -> StopReason:
    """Return the stop reason for a ``finish_reason``. Raises ValueError if it is unknown."""
    if reason not in _REASONS:
        raise ValueError(f"finish_reason is {reason!r}")
    return _REASONS[reason]


def version_of(label: Any, initial: int) -> int:
    """Return the policy version for vLLM's label of its weights. Raises ValueError if the label is not one of ours."""
    if label == UNTOUCHED:
        return initial
    if not isinstance(label, str) or not label.isdecimal():
        raise ValueError(f"its weights are labelled {label!r}, which is not a version of a weight chain")
    return int(label)


def read_versions(spans: Any, count: int, initial: int) -> list[int]:
    """Return the version of each token. Raises ValueError if the spans do not cover exactly ``count`` tokens."""
    versions: list[int] = []
    for span in spans or []:
        if span["start"] != len(versions) or span["end"] < span["start"]:
            raise ValueError("weight_versions has a gap")
        versions += [version_of(span["version"], initial)] * (span["end"] - span["start"])
    if len(versions) != count:
        raise ValueError(f"weight_versions covers {len(versions)} of {count} tokens")
    return versions


def read_routes(encoded: Any, prompt: int, count: int) -> tuple[NDArray[np.int16] | None, NDArray[np.int16] | None]:
    """Return (routes int16 ``[count, L, K]``, routes int16 ``[n, L, K]`` of the last n prompt tokens), both None if
    vLLM sent none. It sends one row per token that it computed, so none for the last sampled one, which gets -1. Raises
    ValueError."""
    if encoded is None:
        return None, None
    try:
        array = np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False)
    except (binascii.Error, TypeError, EOFError) as error:
        raise ValueError(f"routed_experts cannot be read: {error}") from None
    fed = max(0, count - 1)
    if array.ndim != 3 or array.dtype.kind not in "iu" or not fed <= len(array) <= prompt + fed:
        raise ValueError(f"routed_experts is {array.dtype}{list(array.shape)} for {prompt} and {count} tokens")
    whole = array.astype(np.int16)
    split = len(whole) - fed
    missing = np.full((count - fed, *whole.shape[1:]), -1, np.int16)
    return np.concatenate([whole[split:], missing]), whole[:split]
