"""Compare a trainer step on conversations that begin alike with the same step on conversations that do not.

A micro-batch computes what its rows have in common once (``woodshed/train/forest.py``): a prompt, and what forks share
with their root, trained tokens included. Both kinds of step have the same number and lengths of rows and the same
trained tokens; to prevent sharing, every row gets another first token. The shapes are those of
``recipes/smollm2.toml``: SmolLM2-135M's width and vocabulary with random weights and fewer layers (each layer costs the
same). Groups are conversations of 600 common and 300 to 500 own tokens. Trees have a root like that and two forks, each
with the first half of the root's own tokens, a third of which is trained. Steps alternate; figures are ratios of
processor seconds on one thread.

``python benchmarks/trainer.py [--layers 4] [--rounds 5]`` writes benchmarks/results/trainer.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from result import write_result

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.train.batch import Sequence, TrainBatch, pack
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer

COMMON, OWN, VOCABULARY = 600, (300, 500), 49_152
SHAPES = {"4_rows": (4, 0), "8_rows": (8, 0), "4_trees": (4, 2)}
"""Number of conversations that begin alike, and of forks of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        d_model=576,
        num_layers=args.layers,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        d_ff=1536,
        family="llama",
        qk_norm=False,
    )
    trainer = Trainer(Decoder(config, seed=0), TrainSettings(microbatch_tokens=1 << 16))
    torch.set_num_threads(1)
    detail: dict[str, dict[str, float]] = {}
    for name, (roots, forks) in SHAPES.items():
        seconds: dict[bool, list[float]] = {True: [], False: []}
        spared = tokens = 0
        for number in range(args.rounds + 1):
            for alike in (True, False):
                made = batch(roots, forks, trainer.step_count + 1, seed=number, alike=alike)
                tokens = len(made.tokens)
                started = time.process_time()
                metrics = trainer.step(made)
                if alike:
                    spared = metrics["spared_share"]
                if number:  # the first round warms up
                    seconds[alike].append(time.process_time() - started)
        shared, apart = statistics.median(seconds[True]), statistics.median(seconds[False])
        detail[name] = {
            "seconds_shared": shared,
            "seconds_apart": apart,
            "speedup": apart / shared,
            "tokens": tokens,
            "spared_share": spared,
        }
        print(f"{name}: {shared:.2f} s with common beginnings, {apart:.2f} s without", flush=True)
    figures = {f"shared_prefix_speedup_{name}": row["speedup"] for name, row in detail.items()}
    write_result("trainer", figures, {"layers": args.layers, "rounds": args.rounds, **detail})


def batch(roots: int, forks: int, step: int, *, seed: int, alike: bool) -> TrainBatch:
    made = []
    for number, (tokens, trained) in enumerate(conversations(np.random.default_rng(seed), roots, forks)):
        if not alike:
            tokens[0] = number
        made.append(Sequence(tokens.astype(np.int32), {"ce": trained.astype(np.float32)}))
    total = float(sum(s.weights["ce"].sum() for s in made))
    return pack(made, id=f"b{step}", step=step, denominators={"ce": total})


def conversations(
    rng: np.random.Generator, roots: int, forks: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield tokens ``[T]`` and which of them are trained: of what follows the prompt every third turn of 20 tokens."""
    prompt = rng.integers(0, VOCABULARY, COMMON)
    for _ in range(roots):
        root = rng.integers(0, VOCABULARY, rng.integers(*OWN))
        half = len(root) // 2
        news = [rng.integers(0, VOCABULARY, rng.integers(*OWN) - half) for _ in range(forks)]
        for own in (root, *(np.concatenate((root[:half], new)) for new in news)):
            time_T = np.arange(len(own))
            yield np.concatenate((prompt, own)), np.concatenate((np.zeros(COMMON, np.bool_), time_T // 20 % 3 == 0))


if __name__ == "__main__":
    main()
