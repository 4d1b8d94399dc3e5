"""Token sequences with loss weights for the supervised stages: kept in one file, served in small batches."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..train.batch import Sequence as BatchSequence
from ..train.batch import TrainBatch, pack


@dataclass(frozen=True)
class Example:
    """``tokens`` int32 ``[T]``; ``weights`` float32 ``[T]``, the weight of predicting token t (0 for the first)."""

    tokens: NDArray[np.int32]
    weights: NDArray[np.float32]


def save_examples(path: Path, examples: Sequence[Example]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
    np.savez(
        temporary,
        tokens=np.concatenate([e.tokens for e in examples]),
        weights=np.concatenate([e.weights for e in examples]),
        lengths=np.asarray([len(e.tokens) for e in examples], np.int32),
    )
    temporary.replace(path)


def load_examples(path: Path) -> list[Example]:
    with np.load(path) as file:
        cuts = np.cumsum(file["lengths"])[:-1]
        tokens, weights = np.split(file["tokens"], cuts), np.split(file["weights"], cuts)
    return [Example(t, w) for t, w in zip(tokens, weights, strict=True)]


def batches(examples: Sequence[Example], batch_tokens: int, *, seed: int, epochs: int = 1) -> Iterator[TrainBatch]:
    """Shuffled batches of about ``batch_tokens`` tokens; the loss is the weighted mean over a batch. Deterministic."""
    step = 0
    for epoch in range(epochs):
        order = list(range(len(examples)))
        random.Random(f"batches-{seed}-{epoch}").shuffle(order)
        chosen: list[Example] = []
        for number, index in enumerate(order):
            chosen.append(examples[index])
            full = sum(len(e.tokens) for e in chosen) >= batch_tokens
            if full or number == len(order) - 1:
                total = float(sum(np.abs(e.weights).sum() for e in chosen))
                if total > 0:
                    step += 1
                    rows = [BatchSequence(e.tokens, {"ce": e.weights}) for e in chosen]
                    yield pack(rows, id=f"s{step}", step=step, denominators={"ce": total})
                chosen = []


def count_batches(examples: Sequence[Example], batch_tokens: int, *, seed: int, epochs: int = 1) -> int:
    """How many batches ``batches`` yields, without making them."""
    steps = 0
    for epoch in range(epochs):
        order = list(range(len(examples)))
        random.Random(f"batches-{seed}-{epoch}").shuffle(order)
        tokens, weighted = 0, False
        for number, index in enumerate(order):
            tokens += len(examples[index].tokens)
            weighted |= bool(np.any(examples[index].weights))
            if tokens >= batch_tokens or number == len(order) - 1:
                steps += weighted
                tokens, weighted = 0, False
    return steps
