"""What rows share is computed once, and nothing else changes: gradients against float64 autograd, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from woodshed.policy.decoder import Decoder
from woodshed.train.batch import Sequence, TrainBatch, pack
from woodshed.train.collate import collate, input_lengths, shared_length, weighted
from woodshed.train.settings import TrainSettings

from .conftest import CONFIG, MOE
from .test_loss import assert_close, gradients, reference

PREFIX = 20


def group(prefix: int = PREFIX, tails: tuple[int, ...] = (7, 13, 4, 13), *, routes: bool = False) -> TrainBatch:
    """Rows that begin alike and go on differently; every other token of the continuations is trained."""
    rng = np.random.default_rng(3)
    head = rng.integers(0, 61, prefix)
    experts = rng.permuted(np.tile(np.arange(4), (prefix, 2, 1)), axis=-1)[..., :2]
    rows = []
    for tail in tails:
        # The first token after the prefix differs from row to row.
        own = np.concatenate(([len(rows)], rng.integers(0, 61, tail - 1)))
        weight = np.zeros(prefix + tail, np.float32)
        weight[prefix + 1 :: 2] = rng.standard_normal(len(weight[prefix + 1 :: 2]))
        logprobs = np.where(weight != 0, -4 + 0.1 * rng.standard_normal(len(weight)), np.nan).astype(np.float32)
        chosen = rng.permuted(np.tile(np.arange(4), (tail, 2, 1)), axis=-1)[..., :2]
        rows.append(
            Sequence(
                np.concatenate((head, own)).astype(np.int32),
                {"rl": weight},
                logprobs,
                routes=np.concatenate((experts, chosen)).astype(np.int16) if routes else None,
            )
        )
    return pack(rows, id="g", step=1, denominators={"rl": 5.0})


def micro(batch: TrainBatch):
    used = weighted(batch)
    return collate(batch, np.arange(len(batch)), input_lengths(batch, used), used, torch.device("cpu"))


@pytest.mark.parametrize("moe", [False, True])
def test_gradients_are_those_of_the_rows_alone(moe: bool) -> None:
    decoder = Decoder(MOE if moe else CONFIG, seed=1)
    batch = group(routes=moe)
    made = micro(batch)
    assert made.spared_tokens == 3 * PREFIX
    lengths = input_lengths(batch, weighted(batch))
    assert len(made.tokens_N) == lengths.sum() - 3 * PREFIX
    got, seen = gradients(decoder, batch, TrainSettings())
    expected, loss = reference(decoder, batch, lambda r: r.clamp(max=2.0), routes=moe)
    assert_close(got, expected)
    assert sum(seen.loss.values()) == pytest.approx(float(loss), rel=1e-5)


def test_recomputed_activations_give_the_same_gradient() -> None:
    decoder, batch = Decoder(CONFIG, seed=1), group()
    kept, _ = gradients(decoder, batch, TrainSettings())
    decoder.recompute = True
    again, _ = gradients(decoder, batch, TrainSettings())
    assert all(torch.equal(kept[n], again[n]) for n in kept)


def test_a_trained_token_is_never_shared() -> None:
    """Rows may weigh the same token differently, so what predicts one ends the prefix."""
    batch = group()
    batch.weights["rl"][batch.offsets[2] + 9] = 0.5
    batch.behaviour_logprobs[batch.offsets[2] + 9] = -4.0
    assert micro(batch).spared_tokens == 3 * 8
    decoder = Decoder(CONFIG, seed=1)
    assert_close(gradients(decoder, batch, TrainSettings())[0], reference(decoder, batch, lambda r: r.clamp(max=2))[0])


def test_other_experts_end_the_prefix() -> None:
    """Tokens sampled under two policy versions may have gone to different experts; each row replays its own."""
    batch = group(routes=True)
    assert batch.routes is not None
    at = batch.offsets[1] + 11
    batch.routes[at, 1] = batch.routes[at, 1, ::-1]
    assert micro(batch).spared_tokens == 3 * 11


def test_rows_with_little_in_common_are_left_alone() -> None:
    assert micro(group(prefix=1, tails=(20, 20))).spared_tokens == 0
    assert micro(group(tails=(9,))).spared_tokens == 0
    same = np.zeros((2, 30), np.int64)
    nowhere = np.zeros((2, 30), np.bool_)
    nowhere[:, 29] = True
    assert shared_length(same, nowhere, None) == 29
