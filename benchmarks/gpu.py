"""Compare trainer and engine on a GPU with transformers, and results on a GPU with a CPU: ``python benchmarks/gpu.py``.

- ``correctness``: gradient, weights after a step and 50 losses of one small policy on the GPU and on the CPU, float32.
- ``mismatch``: differences between the engine's log-probabilities (float32 and bfloat16, graphs off and on, with weight
  updates from GPU memory in flight) and those of the trainer's forward pass on the same tokens, with float32 and with
  bfloat16 products.
- ``trainer``: tokens per second of ``Trainer`` and of a plain loop with transformers' model. Both have float32 weights
  and gradients, bfloat16 products by autocast (our logits by TF32), fused AdamW, gradients clipped to norm 1,
  torch's attention, no padding, no recomputation, one micro-batch of the same rows per step, cross-entropy of every
  token. Weights are random; the two sides alternate. Peak memory includes weights, gradients and optimizer of that side
  alone.
- ``engine``: prefill and decoding rates over batch sizes, bfloat16, graphs off and on, compared with ``generate``.

Figures are medians or ratios of medians. ``--device cpu --small`` runs every path without a GPU; its result is not
written to results/gpu.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity import BASE, Row, converse, random_decoder, sequence, trainer_side
from peers.policies import Load
from result import write_result
from torch import Tensor

from woodshed.engine.local import LocalEngine
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.native import build, fused
from woodshed.policy.operators import products_in
from woodshed.train.batch import TrainBatch, pack
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer

SMOLLM2 = DecoderConfig(
    vocab_size=49_152,
    d_model=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    d_ff=1536,
    max_positions=2048,
    rope_theta=100_000.0,
    norm_eps=1e-5,
    family="llama",
    qk_norm=False,
)
LARGE = replace(SMOLLM2, d_model=2048, num_layers=16, num_heads=32, num_kv_heads=8, d_ff=8192)
"""1.07 billion parameters: the shape of Llama 3.2 1B with SmolLM2's vocabulary."""
TINY = replace(SMOLLM2, vocab_size=512, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=128)
CURVE_STEPS = 50


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements.

    ``shapes``: for the trainer, by name, a policy and the number of rows of a step; every row has ``length`` tokens.
    ``mismatch``: policies by name. ``served``, ``batches``, ``load``: the engine's policy, batch sizes and prompts.
    """

    shapes: dict[str, tuple[DecoderConfig, int]]
    length: int
    rounds: int
    mismatch: dict[str, DecoderConfig]
    served: DecoderConfig
    batches: tuple[int, ...]
    load: Load


FULL = Sizes(
    shapes={"135m": (SMOLLM2, 16), "1b": (LARGE, 8)},
    length=1024,
    rounds=5,
    mismatch={"5m": BASE, "135m": SMOLLM2},
    served=SMOLLM2,
    batches=(1, 8, 32, 128, 256),
    load=Load(runs=0, trajectories=0, table_prompt=128, table_output=48, rounds=(3, 3, 3, 3, 3)),
)
SMALL = Sizes(
    shapes={"135m": (TINY, 4), "1b": (TINY, 2)},
    length=32,
    rounds=2,
    mismatch={"5m": replace(TINY, max_positions=1024), "135m": replace(TINY, max_positions=1024)},
    served=TINY,
    batches=(1, 8),
    load=Load(runs=0, trajectories=0, table_prompt=8, table_output=4, rounds=(1, 1)),
)


class Run:
    """Device, sizes, and the figures and detail measured so far."""

    def __init__(self, device: torch.device, sizes: Sizes, path: Path | None) -> None:
        self.device, self.sizes, self.path = device, sizes, path
        self.cuda = device.type == "cuda"
        self.figures: dict[str, float | None] = {}
        self.detail: dict[str, Any] = {"torch": torch.__version__, "failed": {}, "seconds": {}}
        self.began = time.perf_counter()

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def release(self) -> None:
        """Return unreferenced memory to the GPU."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.cuda else 0

    @contextmanager
    def peak(self, into: dict[str, float], name: str) -> Iterator[None]:
        """Store in ``into[name]`` the peak of GPU memory in the body, in GiB above what is allocated at its start."""
        before = self.allocated()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        yield
        self.wait()
        into[name] = (torch.cuda.max_memory_allocated() - before) / 2**30 if self.cuda else 0.0


def rows_of(vocabulary: int, rows: int, length: int, seed: int) -> np.ndarray:
    """Return tokens int32 ``[rows, length]`` that can be learned a little: each is 1 to 8 above the previous one."""
    steps = np.random.default_rng(seed).integers(1, 9, (rows, length))
    return (np.cumsum(steps, 1) % vocabulary).astype(np.int32)


def batch_of(tokens_BT: np.ndarray, step: int) -> TrainBatch:
    """Return a batch with the cross-entropy of every token except the first."""
    weight = np.ones(tokens_BT.shape[1], np.float32)
    weight[0] = 0.0
    rows = [Row(tokens, {"ce": weight}) for tokens in tokens_BT]
    return pack(rows, id=f"b{step}", step=step, denominators={"ce": float(weight.sum() * len(rows))})


# ---- correctness ----


def correctness(run: Run) -> None:
    config = replace(TINY, d_model=128, num_layers=4, num_heads=8)
    found: dict[str, Any] = {}
    for kind in ("adamw", "muon"):
        settings = TrainSettings(optimizer=OptimizerSettings(kind=kind, lr=1e-3), clip_norm=1.0)
        sides = {name: one_side(config, settings, torch.device(name)) for name in ("cpu", run.device.type)}
        cpu, other = sides["cpu"], sides[run.device.type]
        found[kind] = {
            "loss_difference": abs(cpu["losses"][0] - other["losses"][0]),
            "gradient_max_relative": worst_relative(cpu["gradients"], other["gradients"]),
            "weights_max_relative": worst_relative(cpu["weights"], other["weights"]),
            "curve_max_difference": max(abs(a - b) for a, b in zip(cpu["losses"], other["losses"])),
            "curve": {name: [round(loss, 5) for loss in side["losses"][::7]] for name, side in sides.items()},
        }
    run.detail["correctness"] = found
    run.figures |= {f"step_{name}": found["adamw"][name] for name in ("gradient_max_relative", "curve_max_difference")}
    run.figures["step_muon_curve_max_difference"] = found["muon"]["curve_max_difference"]


def one_side(config: DecoderConfig, settings: TrainSettings, device: torch.device) -> dict[str, Any]:
    """Return the gradient of the first step, the weights after it, and the losses of all steps."""
    trainer = Trainer(Decoder(config, seed=0, device=device), settings)
    batches = [batch_of(rows_of(config.vocab_size, 4, 48, seed), seed + 1) for seed in range(CURVE_STEPS)]
    used = weighted(batches[0])
    lengths = input_lengths(batches[0], used)
    for rows in micro_batches(batches[0], lengths, settings.microbatch_tokens):
        micro = collate(batches[0], rows, lengths, used, trainer.decoder.device)
        backward(trainer.decoder, micro, batches[0].denominators, settings, TokenStats())
    gradients = {name: p.grad.cpu().clone() for name, p in trainer.decoder.named_parameters() if p.grad is not None}
    trainer.decoder.zero_grad(set_to_none=True)
    losses, weights = [], {}
    for batch in batches:
        losses.append(trainer.step(batch)["loss"])
        if not weights:
            weights = {name: p.detach().cpu().clone() for name, p in trainer.decoder.named_parameters()}
    return {"gradients": gradients, "weights": weights, "losses": losses}


def worst_relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return, over all tensors, the maximum of a tensor's largest difference divided by its largest value."""
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


# ---- mismatch ----


def mismatch(run: Run) -> None:
    run.detail["mismatch"] = {}
    for size, config in run.sizes.mismatch.items():
        # the large policy has a single version, since versions take long to draw and to sample from
        count, modes = (1, (True,)) if size == "135m" else (3, (False, True))
        decoders = [random_decoder(config, seed).to(run.device) for seed in range(count)]
        for dtype, graphs in itertools.product(("float32", "bfloat16"), modes if run.cuda else (False,)):
            for name, swaps in (("fixed", []), ("in_flight", decoders[1:]))[:count]:
                label = f"{size}_{dtype}{'_graphs' if graphs else ''}_{name}"
                talks = asyncio.run(converse(decoders[0], dtype, graphs=graphs, swaps=swaps))
                rows = [sequence(tokens, done, config) for tokens, done in talks]
                run.detail["mismatch"][label] = found = by_version(decoders, rows)
                run.figures[f"dlogp_p99_{label}"] = found["products_float32"]["p99"]
                run.say(f"mismatch {label}: {found}")
        run.release()


def by_version(decoders: list[Decoder], rows: list[Row]) -> dict[str, Any]:
    """Return the differences of every token's log-probability from the trainer's, with the version that sampled it."""
    found: dict[str, Any] = {"tokens": 0, "tokens_of_versions": []}
    for version in range(len(decoders)):
        count = sum(int((row.versions == version).sum()) for row in rows if row.versions is not None)
        found["tokens_of_versions"].append(count)
        found["tokens"] += count
    for products in ("float32", "bfloat16"):
        gaps = []
        for version, decoder in enumerate(decoders):
            if not found["tokens_of_versions"][version]:
                continue
            sampled = [replace(row, weights={"rl": (row.versions == version).astype(np.float32)}) for row in rows]
            with products_in(products):
                gaps.append(trainer_side(decoder, sampled, replay=False)[0])
        gap = np.concatenate(gaps)
        assert len(gap) == found["tokens"]
        found[f"products_{products}"] = {
            "mean": float(gap.mean()),
            "p99": float(np.quantile(gap, 0.99)),
            "max": float(gap.max()),
        }
    return found


# ---- trainer ----


def trainer(run: Run) -> None:
    run.detail["trainer"] = {}
    for size, (config, rows) in run.sizes.shapes.items():
        found = train_beside_transformers(run, config, rows)
        run.detail["trainer"][size] = found
        run.figures[f"trainer_vs_transformers_{size}"] = found["trainer_vs_transformers"]
        run.figures[f"trainer_tokens_per_s_{size}"] = found["tokens_per_s"]["woodshed"]
        run.figures[f"trainer_peak_memory_vs_transformers_{size}"] = found["peak_memory_vs_transformers"]
        run.release()


def drawn_on(config: DecoderConfig, device: torch.device) -> Decoder:
    """Return a decoder with random weights, drawn on ``device``, because drawing a billion on a CPU takes longer than
    everything else."""
    decoder = Decoder(config, seed=None, device=device)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=0.02)
    return decoder


def train_beside_transformers(run: Run, config: DecoderConfig, rows: int) -> dict[str, Any]:
    from peers.in_transformers import reference

    length = run.sizes.length
    memory: dict[str, float] = {}
    decoder = drawn_on(config, run.device)
    with run.device:
        model = reference(decoder, torch.float32).to(run.device).train()
    model.config.use_cache = False
    ours = Trainer(
        decoder,
        TrainSettings(
            products="bfloat16",
            microbatch_tokens=rows * length,
            logits_elements=1 << 27,
            entropy=False,
            optimizer=OptimizerSettings(lr=1e-5, betas=(0.9, 0.95)),
            schedule=ScheduleSettings(warmup_steps=0),
        ),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    losses: dict[str, list[float]] = {"woodshed": [], "transformers": []}

    def step_ours(tokens_BT: np.ndarray) -> float:
        return ours.step(batch_of(tokens_BT, ours.step_count + 1))["loss"]

    def step_theirs(tokens_BT: np.ndarray) -> float:
        ids = torch.from_numpy(tokens_BT.astype(np.int64)).to(run.device)
        with torch.autocast("cuda", torch.bfloat16) if run.cuda else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    steps: dict[str, Callable[[np.ndarray], float]] = {"woodshed": step_ours, "transformers": step_theirs}
    for name, step in steps.items():  # untimed
        step(rows_of(config.vocab_size, rows, length, 0))
        with run.peak(memory, name):
            step(rows_of(config.vocab_size, rows, length, 0))
        memory[name] += 3 * 4 * decoder.num_parameters / 2**30  # weights and both moments, allocated before
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(run.sizes.rounds):
        for name, step in steps.items():
            tokens_BT = rows_of(config.vocab_size, rows, length, number + 1)
            run.wait()
            began = time.perf_counter()
            losses[name].append(step(tokens_BT))
            run.wait()
            seconds[name].append(time.perf_counter() - began)
    rates = {name: rows * length / statistics.median(each) for name, each in seconds.items()}
    run.say(f"trainer {decoder.num_parameters / 1e6:.0f}M: {rates} tokens/s, {memory} GiB")
    return {
        "parameters": decoder.num_parameters,
        "rows": rows,
        "length": length,
        "seconds": seconds,
        "tokens_per_s": rates,
        "peak_memory_gib": memory,
        "losses": losses,
        "trainer_vs_transformers": rates["woodshed"] / rates["transformers"],
        "peak_memory_vs_transformers": memory["woodshed"] / memory["transformers"] if run.cuda else None,
    }


# ---- engine ----


def engine(run: Run) -> None:
    asyncio.run(engine_beside_transformers(run))


async def engine_beside_transformers(run: Run) -> None:
    from peers.in_transformers import Generate, reference
    from peers.table import Peer, table
    from peers.traffic import Served

    config = run.sizes.served
    decoder = drawn_on(config, run.device).to(torch.bfloat16)
    with run.device:
        model = reference(decoder, torch.bfloat16).to(run.device)
    settings = EngineSettings(
        seed=0,
        max_running=max(run.sizes.batches),
        max_sessions=max(run.sizes.batches),
        prefill_tokens=8192,
        context=512,
    )
    engines = {"plain": LocalEngine(copy_of(decoder), settings=settings, device=run.device)}
    if run.cuda:
        engines["graphs"] = LocalEngine(
            copy_of(decoder), settings=settings.model_copy(update={"graphs": True}), device=run.device
        )
    peers: dict[str, Peer] = {name: Served(each) for name, each in engines.items()}
    peers["transformers"] = Generate(model)
    try:
        for batch, rounds in zip(run.sizes.batches, run.sizes.load.rounds, strict=True):
            load = replace(run.sizes.load, rounds=(rounds,))
            rates, _ = await table(peers, load, config.vocab_size, (batch,))
            decoded = {name: found[str(batch)]["decode_tokens_per_s"] for name, found in rates.items()}
            run.say(f"engine, batch {batch}: {decoded} decoded tokens/s")
            run.detail.setdefault("engine", {})[str(batch)] = {name: each[str(batch)] for name, each in rates.items()}
            best = "graphs" if run.cuda else "plain"
            run.figures[f"decode_tokens_per_s_{batch}"] = decoded[best]
            for name, figure in (("plain", "decode_graphs_vs_plain"), ("transformers", "decode_vs_transformers")):
                if decoded[best] and decoded[name]:
                    run.figures[f"{figure}_{batch}"] = decoded[best] / decoded[name]
            write_result("gpu", run.figures, run.detail, run.path)
    finally:
        for each in engines.values():
            await each.close()
    run.release()


def copy_of(decoder: Decoder) -> Decoder:
    made = Decoder(decoder.config, seed=None, device=decoder.device, dtype=decoder.dtype)
    made.load_state_dict(decoder.state_dict())
    return made


PARTS: dict[str, Callable[[Run], None]] = {
    "trainer": trainer,
    "mismatch": mismatch,
    "correctness": correctness,
    "engine": engine,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny policies, to try every path")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, help="where the result goes (default benchmarks/results/gpu.json)")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --device cpu --small tries the paths without one")
    out = arguments.out
    if out is None and (arguments.small or arguments.device == "cpu"):
        out = Path("/tmp/woodshed-gpu-small.json")
    build._begun(fused.SOURCES)  # compile the CPU side's kernels in the background
    torch.set_num_threads(min(4, torch.get_num_threads()))  # for the CPU side, whose policy is small
    run = Run(torch.device(arguments.device), SMALL if arguments.small else FULL, out)
    for name in arguments.parts:
        run.say(f"{name} begins")
        began = time.perf_counter()
        try:
            PARTS[name](run)
        except Exception:
            run.detail["failed"][name] = traceback.format_exc()
            traceback.print_exc()
        run.detail["seconds"][name] = time.perf_counter() - began
        run.release()
        write_result("gpu", run.figures, run.detail, run.path)
        run.say(f"{name} took {run.detail['seconds'][name]:.1f} s")
    if run.detail["failed"]:
        sys.exit(f"failed: {', '.join(run.detail['failed'])}")


if __name__ == "__main__":
    main()
