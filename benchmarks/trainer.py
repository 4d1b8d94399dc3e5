"""Compare a trainer step on conversations with a common prefix with the same step on conversations without one.

A micro-batch computes the common prefix of its rows once (``woodshed/train/forest.py``). Both kinds of step have the
same number and lengths of rows and the same trained tokens; to prevent sharing, every row gets another first token. The
shapes are those of ``recipes/smollm2.toml``: SmolLM2-135M's width and vocabulary with random weights and fewer layers
(each layer costs the same), conversations of 600 common and 300 to 500 own tokens. Steps alternate.

``python benchmarks/trainer.py [--layers 4] [--rounds 5]`` writes benchmarks/results/trainer.json.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from result import write_result

from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.train.batch import Sequence, TrainBatch, pack
from woodshed.train.settings import TrainSettings
from woodshed.train.trainer import Trainer

COMMON, OWN = 600, (300, 500)
ROWS = (4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    config = DecoderConfig(
        vocab_size=49_152,
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
    detail: dict[str, dict[str, float]] = {}
    for rows in ROWS:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        tokens = 0
        for number in range(args.rounds + 1):
            for alike in (True, False):
                made = batch(rows, trainer.step_count + 1, seed=number, alike=alike)
                tokens = len(made.tokens)
                started = time.perf_counter()
                trainer.step(made)
                if number:  # the first round warms up
                    seconds[alike].append(time.perf_counter() - started)
        shared, apart = statistics.median(seconds[True]), statistics.median(seconds[False])
        detail[f"{rows} rows"] = {
            "seconds_shared": shared,
            "seconds_apart": apart,
            "speedup": apart / shared,
            "tokens": tokens,
        }
        print(f"{rows} rows: {shared:.2f} s with a common beginning, {apart:.2f} s without", flush=True)
    figures = {f"shared_prefix_speedup_{rows}_rows": detail[f"{rows} rows"]["speedup"] for rows in ROWS}
    write_result("trainer", figures, {"layers": args.layers, "rounds": args.rounds, **detail})


def batch(rows: int, step: int, *, seed: int, alike: bool) -> TrainBatch:
    """Return a batch of conversations whose last fifth is trained, like replies."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 49_152, COMMON)
    made = []
    for row in range(rows):
        own = rng.integers(0, 49_152, rng.integers(*OWN))
        tokens = np.concatenate((common, own)).astype(np.int32)
        if not alike:
            tokens[0] = row
        weight = np.zeros(len(tokens), np.float32)
        weight[-len(tokens) // 5 :] = 1.0
        made.append(Sequence(tokens, {"ce": weight}))
    total = float(sum(s.weights["ce"].sum() for s in made))
    return pack(made, id=f"b{step}", step=step, denominators={"ce": total})


if __name__ == "__main__":
    main()
