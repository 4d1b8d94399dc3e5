"""Weight deltas: bytes and time compared with other codecs, the engine's pause, and integrity of a chain after kills.

Three kinds of consecutive checkpoints: of an RL run of the laptop recipe (its two newest checkpoints, float32 and cast
to bfloat16), SmolLM2-135M in bfloat16 fine-tuned here with learning rates 1e-6 and 1e-5, and a synthetic model of 1B
bfloat16 parameters whose float32 masters take a step of Adam. Every codec gets the same bytes and must restore them.

``python benchmarks/weights.py --run runs/laptop`` writes benchmarks/results/weights.json; ``--quick`` does a little of
everything and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from result import write_result
from rich.console import Console
from rich.table import Table
from weights_codecs import Tally
from weights_kills import kill_at_random
from weights_pairs import as_bfloat16, fine_tuned, of_run, synthetic
from weights_pause import measure

from woodshed.policy.smollm2 import prepare_smollm2

SLOW = ("xor + byte split + zstd-9",)
console = Console(stderr=True)


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    of_run(options.run)  # Report an unsuitable run at once.
    with tempfile.TemporaryDirectory() as scratch:
        console.print(f"kills: {options.kills}")  # First, because it forks, and no threads exist yet.
        kills = kill_at_random(Path(scratch) / "kills", options.kills)
        detail: dict[str, object] = {"kills": kills}
        pauses = {"laptop": measure(options.run / "policy" / "sft", Path(scratch) / "laptop", options.steps, 16)}
        if not options.quick:
            pauses["SmolLM2-135M"] = measure(options.smollm2, Path(scratch) / "smollm2", 4, 2)
        detail["pause"] = pauses
    pairs = compare(options)
    detail["pairs"] = pairs
    figures = {
        "bytes_vs_best_codec_max": max(float(str(pair["ratio_to_best_peer"])) for pair in pairs.values()),
        "pause_share": max(pause["pause_share"] for pause in pauses.values()),
        "kills": kills["kills"],
        "lost_or_doubled": kills["wrong"] + kills["failed_at_the_end"],
    }
    if options.quick:
        print(json.dumps({"figures": figures, **detail}, indent=1))
    else:
        write_result("weights", figures, detail)


def compare(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    out: dict[str, dict[str, object]] = {}

    def done(name: str, tally: Tally) -> None:
        out[name] = tally.result()
        show(name, tally)

    name, pair = of_run(options.run)
    for title, both in ((name, pair), (name.replace("float32", "bfloat16"), as_bfloat16(pair))):
        tally = Tally()
        tally.add(*both)
        done(title, tally)
    for lr in (1e-6, 1e-5):
        console.print(f"SmolLM2-135M at lr {lr:g}: {options.tune_steps} steps")
        tally = Tally(without=SLOW)
        tally.add(*fine_tuned(options.smollm2, lr, options.tune_steps, options.tune_tokens))
        done(f"SmolLM2-135M bfloat16, lr {lr:g}", tally)
    tally = Tally(without=SLOW)
    for number, (old, new) in enumerate(synthetic(options.parameters, 1e-6), 1):
        tally.add(old, new)
        console.print(f"synthetic: shard {number}", end="\r")
    done(f"synthetic {options.parameters:,} parameters bfloat16, lr 1e-06", tally)
    return out


def show(name: str, tally: Tally) -> None:
    table = Table(title=f"{name}: {tally.changed / max(1, tally.elements):.2%} of the values changed")
    for title in ("codec", "bytes", "encode s", "decode s"):
        table.add_column(title, justify="left" if title == "codec" else "right")
    for codec, row in tally.rows.items():
        table.add_row(codec, f"{row['bytes']:,}", f"{row['encode_s']:.2f}", f"{row['decode_s']:.2f}")
    console.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/laptop"), help="run directory that did RL")
    parser.add_argument("--smollm2", type=Path, help="SmolLM2-135M in Hugging Face layout; made if not given")
    parser.add_argument("--kills", type=int, default=100, help="processes to kill")
    parser.add_argument("--steps", type=int, default=20, help="training steps of the pause measurement")
    parser.add_argument("--tune-steps", type=int, default=8, help="steps of each fine-tuning")
    parser.add_argument("--tune-tokens", type=int, default=256, help="tokens of each fine-tuning step")
    parser.add_argument("--parameters", type=int, default=1_000_000_000, help="size of the synthetic model")
    parser.add_argument("--quick", action="store_true", help="a little of everything; prints instead of writing")
    options = parser.parse_args()
    if options.quick:
        options.kills, options.steps, options.parameters = min(options.kills, 6), 5, 1 << 25
        options.tune_steps, options.tune_tokens = 2, 64
    if options.smollm2 is None:
        options.smollm2 = prepare_smollm2(Path.home() / ".cache" / "woodshed")
    return options


if __name__ == "__main__":
    main()
