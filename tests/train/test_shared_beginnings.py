"""A beginning that rows share is computed once. Loss, gradient and metrics stay those of separate rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.train import forest
from woodshed.train.batch import Sequence, TrainBatch, pack
from woodshed.train.collate import MicroBatch, collate, input_lengths, weighted
from woodshed.train.forest import pieces, sort_rows
from woodshed.train.hinted import HintedMessage
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import ImportanceSettings, TrainSettings
from woodshed.train.teacher import read_hints
from woodshed.train.token_sets import SetTable
from woodshed.train.trainer import summarise

from .conftest import CONFIG, MOE
from .test_loss import assert_close, gradients, reference

PREFIX = 20
PARTS = ("rl", "ppo", "gspo", "ce", "ref_kl", "hint_kl")


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
        weight[prefix::2] = rng.standard_normal(len(weight[prefix::2]))
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


def row(tokens: np.ndarray, sampled: np.ndarray, rng: np.random.Generator, *, routes: np.ndarray | None) -> Sequence:
    """A row with a weight in every loss part at each sampled token, a hint for the last of them, and token sets."""
    logprobs = np.where(sampled, -4 + 0.3 * rng.standard_normal(len(tokens)), np.nan).astype(np.float32)
    weights = {part: np.where(sampled, rng.standard_normal(len(tokens)), 0).astype(np.float32) for part in PARTS}
    last = len(tokens) - 3
    weights["hint_kl"][:last] = 0
    context = np.concatenate((tokens[: last - 1], rng.integers(0, 61, 4), tokens[last - 1 : last])).astype(np.int32)
    table, of_T = SetTable(), np.full(len(tokens), -1, np.int32)
    for t in np.flatnonzero(sampled)[::3]:
        of_T[t] = table.add_ids(np.unique(np.append(rng.choice(61, 9, replace=False), tokens[t])))
    allowed, of_T = table.build(of_T)
    return Sequence(
        tokens.astype(np.int32),
        weights,
        logprobs,
        (logprobs + 0.1).astype(np.float32),
        np.where(sampled, 0, -1).astype(np.int32),
        routes,
        allowed=allowed,
        allowed_of=of_T,
        hinted=(HintedMessage(last, len(tokens), context),),
    )


def trees(*, routes: bool = False, roots: int = 2, forks: int = 2) -> TrainBatch:
    """Two groups, each with a prompt; roots that sampled tokens before their node; forks that go on from there."""
    rng, rows = np.random.default_rng(5), []

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 61, count), rng.permuted(np.tile(np.arange(4), (count, 2, 1)), axis=-1)[..., :2]

    for number in range(2):
        prompt = drawn(12)
        for _ in range(roots):
            begin = [np.concatenate(pair) for pair in zip(prompt, drawn(8 + number))]
            for fork in range(1 + forks):
                tokens, chosen = (np.concatenate(pair) for pair in zip(begin, drawn(6 + 2 * fork)))
                sampled = np.arange(len(tokens)) >= (len(begin[0]) if fork else 14)
                rows.append(row(tokens, sampled, rng, routes=chosen.astype(np.int16) if routes else None))
    order = rng.permutation(len(rows))
    return pack([rows[i] for i in order], id="t", step=1, denominators={part: 3.0 + len(part) for part in PARTS})


def micro(batch: TrainBatch) -> MicroBatch:
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


def computed(
    decoder: Decoder, batch: TrainBatch, groups: Iterable[np.ndarray], settings: TrainSettings
) -> tuple[dict[str, Tensor], dict[str, float], int]:
    """Return gradient, metrics and number of positions of a step in these micro-batches."""
    decoder.zero_grad()
    used, seen, positions = weighted(batch), TokenStats(), 0
    lengths = input_lengths(batch, used)
    teacher = read_hints(decoder, batch, settings)
    for rows in groups:
        made = collate(batch, rows, lengths, used, decoder.device)
        backward(decoder, made, batch.denominators, settings, seen, teacher)
        positions += len(made.tokens_N)
    return {n: p.grad.clone() for n, p in decoder.named_parameters()}, summarise(seen), positions


@pytest.mark.parametrize("budget", [30, 60, 4096])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_trees_equal_flat_rows_in_every_loss_part(
    monkeypatch: pytest.MonkeyPatch, moe: bool, dtype: torch.dtype, budget: int
) -> None:
    decoder = Decoder(MOE if moe else CONFIG, seed=1, dtype=dtype)
    if dtype == torch.float64:  # logits are float32 otherwise
        monkeypatch.setattr(decoder, "logits", lambda hidden: F.linear(hidden, decoder.head_weight))
    batch = trees(routes=moe)
    settings = TrainSettings(importance=ImportanceSettings(low=0.5, high=1.5), logits_elements=61 * 7)
    lengths = input_lengths(batch, weighted(batch))
    groups = micro_batches(batch, lengths, budget)
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= budget for rows in groups)
    gradient, metrics, positions = computed(decoder, batch, groups, settings)
    monkeypatch.setattr(forest, "WORTH", np.inf)
    flat, expected, most = computed(decoder, batch, np.arange(len(batch))[:, None], settings)
    assert most == lengths.sum() and (positions < 0.95 * most) == (budget > 30)
    assert (
        {f"loss_{part}" for part in PARTS} | {"kl", "hint_gap", "entropy", "ess"} <= metrics.keys() == expected.keys()
    )
    exact, near = (1e-3, 3e-5) if dtype == torch.float32 else (1e-5, 1e-7) if moe else (1e-11, 1e-12)  # float32 routers
    for name in metrics:
        assert metrics[name] == pytest.approx(expected[name], rel=exact, abs=near), name
    for name in flat:
        torch.testing.assert_close(gradient[name], flat[name], rtol=exact, atol=near, msg=lambda t, n=name: f"{n}: {t}")


def test_each_tree_is_computed_once_up_to_its_fork() -> None:
    """Three trees whose roots have trained tokens before their node: 80 positions each, then those of the rows."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(3):
        head = rng.integers(0, 61, 80)
        for fork in range(3):
            tokens = np.concatenate((head, [fork], rng.integers(0, 61, 11 + fork))).astype(np.int32)
            weight = (np.arange(len(tokens)) >= 80).astype(np.float32)
            if not fork:
                weight[40:60] = 1
            rows.append(Sequence(tokens, {"ce": weight}))
    batch = pack(rows, id="x", step=1, denominators={"ce": 1.0})
    used = weighted(batch)
    lengths = input_lengths(batch, used)
    assert lengths.sum() == 828
    for budget in (4096, 300):
        groups = micro_batches(batch, lengths, budget)
        made = [collate(batch, rows, lengths, used, torch.device("cpu")) for rows in groups]
        assert sum(len(m.tokens_N) for m in made) == 3 * 80 + (lengths - 80).sum() == 348
        assert sum(m.spared_tokens for m in made) == 828 - 348


def test_a_prompt_and_the_turns_of_a_root_lie_one_in_the_other() -> None:
    batch = trees()
    made = micro(batch)
    # Per group: the prompt, two roots up to their nodes, and three continuations of each; a row's last token is
    # only predicted.
    assert len(made.tokens_N) == 2 * 12 + 2 * (8 + 9) + 4 * (5 + 7 + 9)
    assert made.layout.parents.count(-1) == 2 and max(made.layout.parents) > 1
    assert made.of_M is not None and len(made.of_M) > len(made.layout.ends), "continuations begin after the same token"


def test_a_token_trained_in_several_rows_is_computed_once() -> None:
    batch = group()
    for number in (1, 2):
        batch.weights["rl"][batch.offsets[number] + 9] = 0.5 * number
        batch.behaviour_logprobs[batch.offsets[number] + 9] = -4.0
    assert micro(batch).spared_tokens == 3 * PREFIX
    decoder = Decoder(CONFIG, seed=1)
    assert_close(gradients(decoder, batch, TrainSettings())[0], reference(decoder, batch, lambda r: r.clamp(max=2))[0])


def test_recomputed_activations_give_the_same_gradient() -> None:
    decoder, batch = Decoder(CONFIG, seed=1), group()
    kept, _ = gradients(decoder, batch, TrainSettings())
    decoder.recompute = True
    again, _ = gradients(decoder, batch, TrainSettings())
    assert all(torch.equal(kept[n], again[n]) for n in kept)


def test_other_experts_end_the_beginning() -> None:
    """Tokens sampled under two policy versions may have gone to different experts; each row replays its own."""
    batch = group(tails=(7, 13), routes=True)
    assert batch.routes is not None
    at = batch.offsets[1] + 11
    batch.routes[at, 1] = batch.routes[at, 1, ::-1]
    assert micro(batch).spared_tokens == 11
    assert micro(replace(batch, routes=None)).spared_tokens == PREFIX


def test_rows_with_little_in_common_are_left_alone() -> None:
    assert micro(group(prefix=1, tails=(20, 20))).spared_tokens == 0
    assert micro(group(tails=(9,))).spared_tokens == 0


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.integers(1, 100),
)
def test_pieces_and_micro_batches_hold_each_position_once(found: list[list[int]], worth: float, budget: int) -> None:
    batch = pack([Sequence(np.array(tokens, np.int32), {}) for tokens in found], id="x", step=1, denominators={})
    lengths = np.array([len(tokens) for tokens in found])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest, "WORTH", worth)
        rows = sort_rows(batch, np.arange(len(found)), lengths)
        made = list(pieces(rows))
        groups = micro_batches(batch, lengths, budget)
    seen: list[list[int]] = [[] for _ in found]
    whole: list[list[int]] = []
    for piece in made:
        of = [found[i] for i in rows.order[piece.first : piece.end]]
        assert len({tuple(tokens[: piece.stop]) for tokens in of}) == 1 <= piece.stop - piece.start
        assert len(whole[piece.parent] if piece.parent >= 0 else []) == piece.start
        whole.append(of[0][: piece.stop])
        for i in rows.order[piece.first : piece.end]:
            seen[i] += found[i][piece.start : piece.stop]
    assert seen == found
    if not worth:
        assert sum(p.stop - p.start for p in made) == len({tuple(t[:n]) for t in found for n in range(1, len(t) + 1)})
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(found)))
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= budget for rows in groups)
