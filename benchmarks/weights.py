"""Size and time of weight deltas against what others send, on pairs of consecutive checkpoints.

Two workloads: an RL-like run of a million-parameter policy in float32 (dense deltas), and bfloat16 weights whose
float32 masters take Adam-sized steps at learning rates 1e-6 to 1e-4 (sparse to dense). Every codec gets the same
bytes. Peers, reimplemented from their descriptions: full copy; zstd of the new weights; zstd of the XOR (slime's
default); zstd of byte-split XOR; flat indices plus values (TRL's format); the same with gap-coded indices and zstd
(PULSE), and with the XOR of the values split into bytes (NeMo-DCR).

``python benchmarks/weights.py`` writes benchmarks/results/weights.json.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import zstandard
from result import write_result

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state
from woodshed.train.batch import Sequence, pack
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer
from woodshed.weights.chain import Publisher
from woodshed.weights.delta import decode_image, encode_image
from woodshed.weights.follow import Follower
from woodshed.weights.image import Image, take

ZSTD = zstandard.ZstdCompressor(level=1)


def pairs() -> dict[str, tuple[Image, Image]]:
    out = {f"bf16 lr {lr:g}": bf16_pair(lr) for lr in (1e-6, 3e-6, 1e-5, 1e-4)}
    states = rl_run(steps=3)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        old, new = ({k: v.to(dtype) for k, v in s.items()} for s in states[-2:])
        out[f"RL run {name} lr 3e-4"] = (take(old), take(new))
    return out


def bf16_pair(lr: float) -> tuple[Image, Image]:
    """Weights N(0, 0.02) and Adam steps after warm-up: mostly below the learning rate, heavy at zero."""
    generator = torch.Generator().manual_seed(0)
    before, after = {}, {}
    for i in range(4):
        weights = 0.02 * torch.randn(1024, 1024, generator=generator)
        step = lr * torch.randn(1024, 1024, generator=generator).clamp(-3, 3) / 2
        before[f"w{i}"], after[f"w{i}"] = weights.bfloat16(), (weights + step).bfloat16()
    return take(before), take(after)


def rl_run(steps: int) -> list[dict[str, torch.Tensor]]:
    config = DecoderConfig(1280, 128, 4, 4, 4, 32, 384, max_positions=512)
    trainer = Trainer(Decoder(config, seed=0), TrainSettings())
    rng = np.random.default_rng(0)
    states = []
    for step in range(1, steps + 1):
        rows = []
        for _ in range(16):
            sampled = rng.random(160) < 0.25
            sampled[0] = False
            weight = np.where(sampled, rng.choice([-0.4, 0.6]), 0).astype(np.float32)
            behaviour = np.where(sampled, -np.log(1280), np.nan).astype(np.float32)
            rows.append(Sequence(rng.integers(0, 1280, 160).astype(np.int32), {"rl": weight}, behaviour))
        trainer.step(pack(rows, id=str(step), step=step, denominators={"rl": 16 * 64.0}))
        states.append({k: v.clone() for k, v in hf_state(trainer.decoder).items()})
    return states


def zstd_new(old: Image, new: Image) -> int:
    return sum(len(ZSTD.compress(t.data.tobytes())) for t in new.values())


def zstd_xor(old: Image, new: Image) -> int:
    return sum(len(ZSTD.compress((t.data ^ old[k].data).tobytes())) for k, t in new.items())


def zstd_split_xor(old: Image, new: Image, level: int = 1) -> int:
    compressor = zstandard.ZstdCompressor(level=level)

    def planes(k: str) -> bytes:
        return (new[k].data ^ old[k].data).reshape(-1, new[k].itemsize).T.tobytes()

    return sum(len(compressor.compress(planes(k))) for k in new)


def index_value(old: Image, new: Image) -> int:
    return sum((4 + t.itemsize) * len(changed(old, new, k)) for k, t in new.items())


def gap_value_zstd(old: Image, new: Image, *, xor: bool = False) -> int:
    """Gaps as uint8 (uint16 where one does not fit) and values, as they are or as XOR by byte; zstd on each stream."""
    total = 0
    for k, t in new.items():
        index = changed(old, new, k)
        gaps = np.diff(index, prepend=-1) - 1
        width = np.uint8 if not len(gaps) or gaps.max() < 256 else np.uint16
        values = ((t.data ^ old[k].data) if xor else t.data).reshape(-1, t.itemsize)[index]
        values = values.T if xor else values
        total += len(ZSTD.compress(gaps.astype(width).tobytes())) + len(ZSTD.compress(values.tobytes()))
    return total


def changed(old: Image, new: Image, k: str) -> np.ndarray:
    return np.flatnonzero((new[k].data != old[k].data).reshape(-1, new[k].itemsize).any(1))


PEERS: dict[str, Callable[[Image, Image], int]] = {
    "full copy": lambda old, new: sum(len(t.data) for t in new.values()),
    "zstd": zstd_new,
    "xor + zstd": zstd_xor,
    "xor + byte split + zstd": zstd_split_xor,
    "xor + byte split + zstd-9": lambda old, new: zstd_split_xor(old, new, 9),
    "index + value": index_value,
    "gaps + value + zstd": gap_value_zstd,
    "gaps + xor value + zstd": lambda old, new: gap_value_zstd(old, new, xor=True),
}


def measure(old: Image, new: Image) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, codec in PEERS.items():
        started = time.process_time()
        out[f"{name} bytes"] = codec(old, new)
        out[f"{name} encode cpu s"] = time.process_time() - started
    started = time.process_time()
    data, index = encode_image(new, old)
    out["woodshed encode cpu s"] = time.process_time() - started
    # Names, shapes and checksums are counted too.
    out["woodshed bytes"] = len(data) + len(json.dumps(index, separators=(",", ":")))
    out["woodshed data bytes"] = len(data)
    started = time.process_time()
    decoded = decode_image(data, index, old, where="benchmark")
    out["woodshed decode cpu s"] = time.process_time() - started
    assert all(np.array_equal(decoded[k].data, new[k].data) for k in new)
    out["changed share"] = sum(len(changed(old, new, k)) for k in new) / sum(
        len(t.data) // t.itemsize for t in new.values()
    )
    peers = {k: v for k, v in out.items() if k.endswith(" bytes") and not k.startswith("woodshed")}
    out["best peer bytes"] = min(peers.values())
    out["ratio to best peer"] = out["woodshed data bytes"] / out["best peer bytes"]
    return out


def chain_times() -> dict[str, float]:
    """Publish and follow through a folder, fsync on, at one million float32 parameters."""
    states = rl_run(steps=4)
    publish, follow = [], []
    with tempfile.TemporaryDirectory() as folder:
        publisher, follower = Publisher(folder), Follower(folder)
        for version, state in enumerate(states):
            started = time.process_time()
            publisher.publish(version, state)
            publish.append(time.process_time() - started)
            started = time.process_time()
            follower.poll()
            follow.append(time.process_time() - started)
    return {"publish cpu s": float(np.median(publish[1:])), "follow cpu s": float(np.median(follow[1:]))}


def main() -> None:
    torch.set_num_threads(1)
    detail = {name: measure(*pair) for name, pair in pairs().items()}
    detail["chain, 1M float32"] = chain_times()
    ratios = [d["ratio to best peer"] for d in detail.values() if "ratio to best peer" in d]
    write_result("weights", {"bytes_vs_best_codec_max": max(ratios)}, detail)
    for name, row in detail.items():
        print(name, {k: round(v, 4) for k, v in row.items()})


if __name__ == "__main__":
    main()
