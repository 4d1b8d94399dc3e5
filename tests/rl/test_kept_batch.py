"""Training on truncated sampling: from requests to a real gateway to the importance ratios of the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.gateway.parts import ADMIN
from tests.gateway.real import server
from tests.gateway.test_constraints import CHAT_TOOLS, HERMES
from woodshed.engine.grammar import Grammars
from woodshed.gateway.client import GatewayAdmin
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.record.kept import KeptSets, decode_sets, encode_sets
from woodshed.record.segment import Segment
from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.train.batch import TrainBatch
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import ImportanceSettings, TrainSettings

CONFIG = DecoderConfig(
    vocab_size=HERMES.vocab_size,
    d_model=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    d_ff=64,
    max_positions=2048,
)


@dataclass
class Served:
    url: str
    directory: Path


def policy() -> Decoder:
    made = Decoder(CONFIG, seed=0)
    with torch.no_grad():
        made.norm.mul_(20.0)  # far from uniform: kept sets of one to dozens of tokens
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("kept")
    save_policy(Policy(policy(), HERMES, get_format("hermes"), CONFIG), directory / "policy")
    with server(directory, "--max-tokens", "80") as (url, _):
        yield Served(url, directory)


async def sampled(url: str, name: str, source: str, **fields: Any) -> list[Segment]:
    """The record of two turns of a conversation."""
    async with GatewayAdmin(url, ADMIN) as admin, httpx.AsyncClient(timeout=120) as client:
        key = await admin.open(name, source=source)
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"fix {name}"}]
        for _ in range(2):
            answer = await client.post(
                f"{url}/v1/chat/completions",
                headers={"authorization": f"Bearer {key}"},
                json={"model": "m", "messages": messages, **fields},
            )
            assert answer.status_code == 200, answer.text
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
        return (await admin.finish(name)).segments


def group_of(segments: list[list[Segment]]) -> list[Trajectory]:
    made = [
        Trajectory(f"t{i}", "task", "g", "train", "h", "p", "submitted", s, rewards={"r": float(i % 2)})
        for i, s in enumerate(segments)
    ]
    return [trajectory_from_bytes(trajectory_to_bytes(t)) for t in made]


def batch_of(group: list[Trajectory], directory: Path) -> TrainBatch:
    """The batch after a round trip through its file."""
    algorithm = load_algorithm("mean_baseline", budget=10)
    batch, _ = build_batch(
        [group],
        algorithm,
        step=1,
        batch_id="b",
        generation_budget=64,
        grammars=lambda: Grammars.of(HERMES),
    )
    batch.save(directory / "batch.safetensors")
    return TrainBatch.load(directory / "batch.safetensors")


def gaps(decoder: Decoder, batch: TrainBatch) -> torch.Tensor:
    """log pi(token) of the trainer minus the recorded one, of every weighted token."""
    decoder.zero_grad()
    decoder.requires_grad_(True)
    settings = TrainSettings(microbatch_tokens=1000, importance=ImportanceSettings(mode="off"), logits_elements=1 << 15)
    used, seen = weighted(batch), TokenStats()
    lengths = input_lengths(batch, used)
    for rows in micro_batches(batch, lengths, settings.microbatch_tokens):
        backward(decoder, collate(batch, rows, lengths, used, decoder.device), batch.denominators, settings, seen)
    return torch.cat(seen.dlogp)


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 8}, {"min_p": 0.05, "top_p": 0.95}], ids=str)
def test_the_trainer_finds_the_recorded_log_probabilities(served: Served, tmp_path: Path, fields: dict) -> None:
    async def main() -> list[list[Segment]]:
        asks = (sampled(served.url, f"{fields}{i}", "train", seed=i, **fields) for i in range(4))
        return list(await asyncio.gather(*asks))

    group = group_of(asyncio.run(main()))
    batch = batch_of(group, tmp_path)
    assert batch.allowed is not None
    assert len(batch.allowed.ends) or "top_k" not in fields, "sets of 8 are stored as ids, not as 40 bytes of bits"
    found = gaps(policy(), batch)
    assert len(found) == sum(t.sampled_tokens for t in group) and found.abs().max() < 1e-5
    batch.allowed = batch.allowed_of = None
    unmasked = gaps(policy(), batch)
    assert unmasked.max() < 1e-5 and unmasked.mean() < -0.02, "over all tokens, each is less likely than recorded"


def test_ratios_have_mean_one_with_the_sets_and_not_without(served: Served, tmp_path: Path) -> None:
    """Under the behaviour distribution q the ratio p/q has mean 1 for every p on q's support; over the whole vocabulary
    it has only the mass that p gives the kept set."""

    async def main() -> list[list[Segment]]:
        return list(
            await asyncio.gather(*(sampled(served.url, f"r{i}", "train", seed=i, top_p=0.8) for i in range(24)))
        )

    batch = batch_of(group_of(asyncio.run(main())), tmp_path)
    later = policy()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter.add_(0.01 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator))
    ratio = gaps(later, batch).exp()
    error = float(ratio.std() / len(ratio) ** 0.5)
    assert ratio.std() > 0.01, "the policy has moved"
    assert abs(float(ratio.mean()) - 1) < 4 * error
    batch.allowed = batch.allowed_of = None
    biased = gaps(later, batch).exp()
    assert float(biased.mean()) < 0.95, "top-p 0.8 leaves at most about a fifth out"
    assert 1 - float(biased.mean()) > 20 * float(biased.std() / len(biased) ** 0.5)


def test_a_kept_set_is_part_of_what_the_grammar_allows(served: Served, tmp_path: Path) -> None:
    async def main() -> list[list[Segment]]:
        forced = {"tools": CHAT_TOOLS, "tool_choice": "required"}
        asks = (sampled(served.url, f"g{i}", "train", seed=i, top_p=0.9, **forced) for i in range(2))
        return list(await asyncio.gather(*asks))

    group = group_of(asyncio.run(main()))
    assert all(segment.constraints and segment.kept for t in group for segment in t.segments)
    assert gaps(policy(), batch_of(group, tmp_path)).abs().max() < 1e-5


def test_sets_survive_a_crash_of_the_server(served: Served, tmp_path: Path) -> None:
    (tmp_path / "policy").symlink_to(served.directory / "policy")

    async def turn(url: str, key: str) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            ask = {"model": "m", "messages": [{"role": "user", "content": "x"}], "top_p": 0.9, "seed": 3}
            answer = await client.post(
                f"{url}/v1/chat/completions", headers={"authorization": f"Bearer {key}"}, json=ask
            )
            assert answer.status_code == 200, answer.text

    async def before(url: str) -> None:
        async with GatewayAdmin(url, ADMIN) as admin:
            await turn(url, await admin.open("crash", source="train"))

    async def after(url: str) -> list[Segment]:
        async with GatewayAdmin(url, ADMIN) as admin:
            return (await admin.finish("crash")).segments

    journal = ("--journal", str(tmp_path / "journal"))
    with server(tmp_path, *journal) as (url, process):
        asyncio.run(before(url))
        process.kill()
    with server(tmp_path, *journal) as (url, _):
        segments = asyncio.run(after(url))
    (kept,) = segments[0].kept
    assert kept.end == len(segments[0]) and kept.known and len(kept.sets()) == kept.end - kept.start
    assert gaps(policy(), batch_of(group_of([segments, segments]), tmp_path)).abs().max() < 1e-5


def test_unknown_sets_cannot_be_trained_on(served: Served, tmp_path: Path) -> None:
    segments = asyncio.run(sampled(served.url, "unknown", "live", seed=1, top_p=0.9))
    group = group_of([segments, segments])
    (segment,) = group[1].segments
    segment.kept[0] = KeptSets.of(segment.kept[0].start, [b""] * (segment.kept[0].end - segment.kept[0].start))
    with pytest.raises(ValueError, match="does not report which tokens it kept"):
        batch_of(group, tmp_path)
    with pytest.raises(ValueError, match="not sampled"):
        segment.kept[0] = KeptSets(0, 2, b"")
        segment.check()


def test_records_are_compact() -> None:
    one, few, most = np.array([70_000]), np.array([3, 500, 150_000]), np.arange(0, 150_000, 2)
    data = encode_sets([one, few, most])
    assert len(data) == 8 + 16 + 4 + 18_750
    assert [ids.tolist() for ids in decode_sets(data)] == [one.tolist(), few.tolist(), most.tolist()]
    for damaged in (data[:-1], data[:6], b"\0\0\0\0"):
        with pytest.raises(ValueError):
            decode_sets(damaged)
    with pytest.raises(ValueError, match="kept sets"):
        KeptSets.from_json([0, 1, "?"])
    kept = KeptSets.of(4, [one.astype("<i4").tobytes()])
    assert KeptSets.from_json(kept.to_json()) == kept
