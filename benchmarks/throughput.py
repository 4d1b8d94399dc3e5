"""Compare the trainer's step with the same step in transformers: tokens per second, and the losses of fifty steps.

Policies of 1M, 11M and 135M parameters (Qwen3) with equal random weights, exported by us, loaded by transformers; the
same tokens, micro-batches and AdamW (torch's fused one), cross-entropy of all tokens. Steps alternate: ours in float32,
transformers', ours with products in bfloat16, and ours in float32 with torch's operators; figures are ratios of
medians. Then our step alone with Muon, as in pretraining, at 1,024 and 4,096 tokens: with torch's operators, with fused
ones, and with products in bfloat16. Processor seconds are recorded in addition to wall seconds: they are more reliable
if other programs run.

``python benchmarks/throughput.py [--threads 2] [--rounds 5] [--sizes 1M 11M 135M] [--no-pretraining]`` writes
benchmarks/results/throughput.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from result import RESULTS, write_result
from transformers import AutoConfig, AutoModelForCausalLM

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.native.fused import FUSED
from woodshed.policy.operators import TORCH
from woodshed.policy.state import hf_state
from woodshed.train.batch import Sequence as Row
from woodshed.train.batch import TrainBatch, pack
from woodshed.train.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from woodshed.train.trainer import Trainer


def qwen3(vocabulary: int, d_model: int, layers: int, heads: int, kv_heads: int, d_ff: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=vocabulary,
        d_model=d_model,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64 if d_model % 64 == 0 and d_model > 256 else d_model // heads,
        d_ff=d_ff,
        max_positions=1024,
    )


SIZES = {
    "1M": (qwen3(1280, 128, 4, 4, 4, 352), (8, 512)),
    "11M": (qwen3(4096, 320, 8, 5, 5, 864), (8, 512)),
    "135M": (qwen3(49_152, 576, 30, 9, 3, 1536), (2, 512)),
}
"""Policy, and the number of rows and tokens per row of a step, by size."""
PRETRAINING = {"0.97M": SIZES["1M"][0], "3.5M": qwen3(1280, 256, 4, 4, 4, 704), "11M": SIZES["11M"][0]}
MICROBATCH_TOKENS = 2048
ADAMW = OptimizerSettings(lr=1e-3)
CURVE_STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=[*SIZES])
    parser.add_argument("--no-pretraining", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    detail: dict[str, Any] = {"threads": args.threads, "rounds": args.rounds, "torch": torch.__version__}
    detail["transformers"] = transformers.__version__
    figures: dict[str, float | None] = {}
    for size in args.sizes:
        config, shape = SIZES[size]
        detail[size] = beside_transformers(config, shape, args.rounds)
        figures[f"trainer_tokens_per_s_vs_transformers_{size}"] = detail[size]["fused"]["vs_transformers"]
        figures[f"trainer_bf16_tokens_per_s_vs_transformers_{size}"] = detail[size]["bfloat16"]["vs_transformers"]
    figures["trainer_tokens_per_s_vs_transformers_min"] = min(
        detail[size]["fused"]["vs_transformers"] for size in args.sizes
    )
    detail["curve"] = curve()
    figures["loss_curve_max_diff"] = max(
        abs(a - b) for a, b in zip(detail["curve"]["ours"], detail["curve"]["transformers"])
    )
    for size, config in {} if args.no_pretraining else PRETRAINING.items():
        for rows in (2, 8):
            found = detail[f"pretraining {size}, {512 * rows} tokens"] = pretraining(config, (rows, 512), args.rounds)
            figures[f"pretraining_speedup_{size}_{512 * rows}"] = found["fused"]["vs_torch"]
            figures[f"pretraining_bf16_speedup_{size}_{512 * rows}"] = found["bfloat16"]["vs_torch"]
    known = json.loads((RESULTS / "throughput.json").read_text())  # of benchmarks/trl_grpo.py
    figures |= {name: value for name, value in known["figures"].items() if name.endswith("_vs_trl")}
    if "trl" in known["detail"]:
        detail["trl"] = known["detail"]["trl"]
    write_result("throughput", figures, detail)


def settings(optimizer: OptimizerSettings, products: str = "float32") -> TrainSettings:
    schedule = ScheduleSettings(warmup_steps=0)
    return TrainSettings.model_validate(
        {
            "optimizer": optimizer,
            "schedule": schedule,
            "entropy": False,
            "products": products,
            "microbatch_tokens": MICROBATCH_TOKENS,
        }
    )


class Transformers:
    """The same training step with a model of transformers."""

    def __init__(self, decoder: Decoder) -> None:
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**decoder.config.to_hf()), attn_implementation="sdpa", dtype=torch.float32
        )
        missing, strange = self.model.load_state_dict(hf_state(decoder), strict=False)
        assert not strange and set(missing) <= {"lm_head.weight"}, (missing, strange)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=ADAMW.lr, betas=ADAMW.betas, eps=ADAMW.eps, weight_decay=0.0, fused=True
        )

    def step(self, tokens_BT: torch.Tensor) -> float:
        total, count = 0.0, tokens_BT[:, 1:].numel()
        for rows_BT in tokens_BT.split(max(1, MICROBATCH_TOKENS // tokens_BT.shape[1])):
            logits = self.model(input_ids=rows_BT, use_cache=False).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), rows_BT[:, 1:].flatten(), reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def ours(decoder: Decoder, given: TrainSettings, *, fused: bool) -> Callable[[np.ndarray], float]:
    trainer = Trainer(decoder, given)
    decoder.compute_with(operators=FUSED if fused else TORCH)
    return lambda tokens_BT: trainer.step(batch(tokens_BT, trainer.step_count + 1))["loss"]


def batch(tokens_BT: np.ndarray, step: int) -> TrainBatch:
    weight = np.ones(tokens_BT.shape[1], np.float32)
    weight[0] = 0.0
    rows = [Row(tokens, {"ce": weight}) for tokens in tokens_BT]
    return pack(rows, id=str(step), step=step, denominators={"ce": float(weight.sum() * len(rows))})


def text(vocabulary: int, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Return tokens int32 ``[rows, tokens]`` with something to learn: most follow from the previous one. Rows begin
    differently, so that no prefix is shared."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocabulary, shape, dtype=np.int32)
    follows = rng.random(shape) < 0.7
    tokens[:, 0] = np.arange(shape[0])
    for t in range(1, shape[1]):
        tokens[:, t] = np.where(follows[:, t], (7 * tokens[:, t - 1] + 3) % min(vocabulary, 251), tokens[:, t])
    return tokens


def alternate(steps: dict[str, Callable[[int], object]], rounds: int, tokens: int) -> dict[str, dict[str, Any]]:
    """Return the tokens per second of every step, from medians over alternating rounds; the first round is a
    warm-up."""
    clock: dict[str, list[float]] = {name: [] for name in steps}
    processor: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            started, used = time.perf_counter(), time.process_time()
            step(number)
            if number:
                clock[name].append(time.perf_counter() - started)
                processor[name].append(time.process_time() - used)
    return {
        name: {
            "tokens_per_s": tokens / statistics.median(clock[name]),
            "seconds": clock[name],
            "processor_seconds": processor[name],
        }
        for name in steps
    }


def ratios(found: dict[str, dict[str, Any]], base: str) -> dict[str, dict[str, Any]]:
    for name, each in found.items():
        if name != base:
            each[f"vs_{base}"] = each["tokens_per_s"] / found[base]["tokens_per_s"]
            used, of_base = (statistics.median(e["processor_seconds"]) for e in (each, found[base]))
            each[f"vs_{base}_by_processor"] = of_base / used
    shown = ", ".join(f"{name} {each['tokens_per_s']:.0f}" for name, each in found.items())
    print(f"  {shown} tokens/s; { ({n: round(e.get(f'vs_{base}', 1), 2) for n, e in found.items()}) }", flush=True)
    return found


def beside_transformers(config: DecoderConfig, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    base = Decoder(config, seed=0)
    print(f"{base.num_parameters / 1e6:.2f}M parameters, {shape[0]} rows of {shape[1]}", flush=True)
    peer = Transformers(base)
    mine = {
        "fused": ours(base, settings(ADAMW), fused=True),
        "bfloat16": ours(Decoder(config, seed=0), settings(ADAMW, "bfloat16"), fused=True),
        "torch": ours(Decoder(config, seed=0), settings(ADAMW), fused=False),
    }
    made = [text(config.vocab_size, shape, seed) for seed in range(rounds + 1)]
    steps: dict[str, Callable[[int], object]] = {
        "transformers": lambda i: peer.step(torch.from_numpy(made[i].astype(np.int64))),
        **{name: (lambda i, step=step: step(made[i])) for name, step in mine.items()},
    }
    found = ratios(alternate(steps, rounds, shape[0] * shape[1]), "transformers")
    return {"parameters": base.num_parameters, "rows": shape[0], "tokens_a_row": shape[1], **found}


def pretraining(config: DecoderConfig, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Measure our step with Muon: with torch's operators, with fused ones, and with products in bfloat16."""
    muon = OptimizerSettings(kind="muon", lr=3e-3)
    print(f"pretraining {Decoder(config).num_parameters / 1e6:.2f}M, {shape[0] * shape[1]} tokens", flush=True)
    mine = {
        "torch": ours(Decoder(config, seed=0), settings(muon), fused=False),
        "fused": ours(Decoder(config, seed=0), settings(muon), fused=True),
        "bfloat16": ours(Decoder(config, seed=0), settings(muon, "bfloat16"), fused=True),
    }
    made = [text(config.vocab_size, shape, seed) for seed in range(rounds + 1)]
    steps = {name: (lambda i, step=step: step(made[i])) for name, step in mine.items()}
    return ratios(alternate(steps, rounds, shape[0] * shape[1]), "torch")


def curve() -> dict[str, Sequence[float]]:
    """Return the losses of 50 steps of both sides, from equal weights on equal data."""
    config = SIZES["1M"][0]
    decoder = Decoder(config, seed=0)
    peer, mine = Transformers(decoder), ours(decoder, settings(ADAMW), fused=True)
    losses: dict[str, list[float]] = {"ours": [], "transformers": []}
    for seed in range(CURVE_STEPS):
        tokens = text(config.vocab_size, (4, 128), seed)
        losses["transformers"].append(peer.step(torch.from_numpy(tokens.astype(np.int64))))
        losses["ours"].append(mine(tokens))
    print(f"loss {losses['ours'][0]:.3f} -> {losses['ours'][-1]:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
