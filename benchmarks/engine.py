"""Compare the engine with others: ``python benchmarks/engine.py [--dtype bfloat16] [--vllm PYTHON] [--llama PYTHON]``.

Two measurements for every size of policy, in one number format, alternating between all engines, with the same weights
and prompts:

- traffic: many prompts at once, the same number of samples in groups with one prompt each, and agents whose context
  grows; compared with transformers' ``generate``, vLLM, our engine with torch's operators instead of its own kernels,
  and, for bfloat16, our engine in float32. The figures are ratios of medians of wall-clock seconds.
- a table of prefill and decoding rates over batch sizes, compared with transformers' ``generate`` and continuous
  batching, llama.cpp and vLLM.

Each uses one thread for matrix products; for the rest vLLM has extra processes, our engine one extra thread. vLLM and
llama.cpp are in environments of their own, whose interpreters are given (docs/serving.md says how to make them).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from peers.in_transformers import Generate, continuous_batching, full_logprobs, gap_after, reference
from peers.llama import llama
from peers.policies import LOADS, Load, open_decoder, prompts, save
from peers.products import product_seconds
from peers.table import Peer, Reply, table, timed
from peers.traffic import Served, traffic
from result import write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.settings import EngineSettings
from woodshed.engine.vllm.client import VllmEngine
from woodshed.engine.vllm.start import serving
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state

KEY = "key-of-the-benchmark"
VLLM_FLAGS = ["--enforce-eager", "--block-size", "32", "--max-model-len", "1024"]
VLLM_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "3", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class Field:
    """The peers that take part, and the reasons why others do not."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.peers: dict[str, Peer] = {}
        self.absent: dict[str, str] = {}

    def without(self, name: str, reason: object) -> None:
        self.absent[name] = str(reason) or repr(reason)
        print(f"without {name}: {reason}", file=sys.stderr, flush=True)


async def enter_vllm(field: Field, python: str, decoder: Decoder, folder: Path) -> VllmEngine | None:
    """Start a vLLM server of the policy and add its client to the field; None if it does not start."""
    save(decoder, folder)
    os.environ.update({name: os.environ.get(name, value) for name, value in VLLM_ENVIRONMENT.items()})
    try:
        flags = ["--dtype", str(decoder.dtype).removeprefix("torch."), *VLLM_FLAGS]
        url = field.stack.enter_context(serving(python, folder, KEY, folder / "vllm.log", flags))
        engine = VllmEngine(url, KEY, vocabulary=decoder.config.vocab_size)
        field.stack.push_async_callback(engine.close)
        await timed(Served(engine), [[1, 2, 3]], 2)
    except (RuntimeError, OSError) as problem:
        field.without("vllm", problem)
        return None
    field.peers["vllm"] = Served(engine)
    return engine


async def enter_llama(field: Field, python: str, decoder: Decoder, folder: Path, length: int) -> None:
    for name, half in (("llama.cpp F32", False), ("llama.cpp F16", True)):
        if not half and decoder.dtype != torch.float32:
            continue
        worker = llama(python, decoder, folder, half=half, slots=32, length=length)
        try:
            field.peers[name] = await field.stack.enter_async_context(worker)
        except (RuntimeError, OSError) as problem:
            field.without(name, problem)


async def enter_continuous(field: Field, model: Any, length: int) -> None:
    """Add transformers' continuous batching. It needs its own copy of the network, because it changes the attention."""
    name = "continuous batching"
    try:
        peer = field.stack.enter_context(continuous_batching(model, requests=32, longest=length))
        await timed(peer, prompts(2, 8, 1000, 1), 2)
    except Exception as problem:
        field.without(name, f"{type(problem).__name__}: {problem}")
    else:
        field.peers[name] = peer


async def measure(
    size: str, dtype: torch.dtype, load: Load, vllm: str | None, llama_python: str | None
) -> dict[str, Any]:
    decoder = open_decoder(size).to(dtype)
    vocabulary, length = decoder.config.vocab_size, load.table_prompt + load.table_output + 1
    model, exact = reference(decoder, dtype), reference(decoder, torch.float32)
    async with AsyncExitStack() as stack:
        field = Field(stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        beside: dict[str, LocalEngine | VllmEngine] = {}
        if vllm is None:
            field.without("vllm", "not asked for (--vllm PYTHON)")
        elif (server := await enter_vllm(field, vllm, decoder, folder)) is not None:
            beside["vllm"] = server
        if llama_python is None:
            field.without("llama.cpp", "not asked for (--llama PYTHON)")
        else:
            await enter_llama(field, llama_python, decoder, folder, length)
        field.peers["generate"] = Generate(model)
        await enter_continuous(field, reference(decoder, dtype), length)
        ours = LocalEngine(decoder, settings=EngineSettings(seed=0))
        stack.push_async_callback(ours.close)
        beside["torch"] = LocalEngine(open_decoder(size).to(dtype), settings=EngineSettings(seed=0, native="off"))
        stack.push_async_callback(beside["torch"].close)
        if dtype != torch.float32:
            beside["float32"] = LocalEngine(open_decoder(size).to(dtype).float(), settings=EngineSettings(seed=0))
            stack.push_async_callback(beside["float32"].close)
        rates, seen = await table({"engine": Served(ours), **field.peers}, load, vocabulary)
        clock, gaps = await traffic({"engine": ours, **beside}, model, exact, load, vocabulary)
        products = [round(product_seconds(decoder, load), 3) for _ in range(load.runs)]
        update = await ours.update_weights(1, {k: v.clone() for k, v in hf_state(decoder).items()})
    wall = {name: statistics.median(seconds) for name, seconds in clock.wall.items()}
    cpu = {name: statistics.median(seconds) for name, seconds in clock.cpu.items()}

    def ratio(of: dict[str, float], name: str, kind: str) -> float | None:
        return round(of[f"{name}_{kind}"] / of[f"engine_{kind}"], 2) if f"{name}_{kind}" in of else None

    return {
        "parameters": decoder.num_parameters,
        "kernels": ours.stats()["kernels"],
        "load": vars(load),
        "absent": field.absent,
        "table": rates,
        "wall_seconds": clock.wall,
        "cpu_seconds": clock.cpu,
        "single_products_seconds": products,
        "single_vs_generate": ratio(wall, "generate", "single"),
        "single_vs_generate_at_most": round(wall["generate_single"] / statistics.median(products), 2),
        "groups_vs_generate": ratio(wall, "generate", "groups"),
        "multiturn_vs_generate": ratio(wall, "generate", "agents"),
        "single_vs_vllm": ratio(wall, "vllm", "single"),
        "groups_vs_vllm": ratio(wall, "vllm", "groups"),
        "multiturn_vs_vllm": ratio(wall, "vllm", "agents"),
        "single_vs_torch": ratio(wall, "torch", "single"),
        "groups_vs_torch": ratio(wall, "torch", "groups"),
        "multiturn_vs_torch": ratio(wall, "torch", "agents"),
        "single_vs_float32": ratio(wall, "float32", "single"),
        "multiturn_vs_float32": ratio(wall, "float32", "agents"),
        "cpu_ratio": {
            "single_vs_generate": ratio(cpu, "generate", "single"),
            "groups_vs_generate": ratio(cpu, "generate", "groups"),
            "multiturn_vs_generate": ratio(cpu, "generate", "agents"),
        },
        "max_abs_dlogp": gaps["engine"],
        "max_abs_dlogp_of_trajectories": gaps,
        "max_abs_dlogp_in_table": {name: gap_of(exact, replies) for name, replies in seen.items()},
        "weight_swap_ms": round(1000 * update, 2),
    }


def gap_of(model: Any, replies: list[tuple[list[int], Reply]]) -> float | None:
    """Return the largest difference of a peer's log-probabilities from a full forward pass; None if it reports none."""
    if any(not reply.logprobs for _, reply in replies):
        return None
    return max(
        gap_after(full_logprobs(model, prompt + reply.tokens), prompt, reply.tokens, reply.logprobs or [])
        for prompt, reply in replies
    )


def worst(results: list[dict[str, Any]], name: str) -> float | None:
    values = [result[name] for result in results if result[name] is not None]
    return min(values, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=LOADS, default=["10M", "135M"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of everybody's weights")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that has vLLM, to measure beside it")
    parser.add_argument("--llama", metavar="PYTHON", help="interpreter that has llama-cpp-python, likewise")
    args = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server stays
    transformers.logging.set_verbosity_error()
    dtype, half = getattr(torch, args.dtype), args.dtype == "bfloat16"
    sizes = {size: asyncio.run(measure(size, dtype, LOADS[size], args.vllm, args.llama)) for size in args.sizes}
    results = list(sizes.values())
    compared = ["single_vs_generate", "groups_vs_generate", "multiturn_vs_generate", "multiturn_vs_vllm"]
    compared += ["single_vs_torch", "multiturn_vs_torch"]
    compared += ["single_vs_float32", "multiturn_vs_float32"] if half else []
    figures = {name: worst(results, name) for name in compared}
    figures["max_abs_dlogp" + ("" if half else "_fp32")] = max(result["max_abs_dlogp"] for result in results)
    write_result(
        "engine_bf16" if half else "engine",
        figures,
        {
            "note": "each figure is the worst over the sizes; ratios are of medians of wall-clock seconds, cpu_ratio "
            "of this process's CPU seconds. torch is our engine with native = off. at_most is the ratio of an engine "
            "that does nothing but multiply matrices with torch's best kernels. generate computes a prompt once for "
            "each sample and the whole context every turn, and gives no log-probabilities; those of the others are "
            "held against a full forward in float32. The table's rates are "
            f"per wall-clock second; everything is in {args.dtype} except llama.cpp F16",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sizes": sizes,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
