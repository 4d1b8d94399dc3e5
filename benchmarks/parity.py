"""Compare log-probabilities of the engine and the trainer for every model family: ``python benchmarks/parity.py``.

The engine samples conversations of several turns (cached prefixes, chunked prompts, requests that come and go); the
trainer computes the same tokens in its own way (packed, padded, common prefixes once). Weights, biases and norms are
random and the same on both sides; large norm weights make the distributions far from uniform, so that differences show.
For mixtures of experts also: the share of tokens and layers for which both chose the same experts, and the difference
if the trainer replays the engine's choice.

Then random configurations are compared with transformers (``parity_random.py``): ``right`` (log-probabilities agree),
``refused`` (with an error) and ``silently_wrong``.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from result import write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state
from woodshed.train.batch import Sequence as Row
from woodshed.train.batch import pack
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.packing import micro_batches

BASE = DecoderConfig(
    vocab_size=4096, d_model=256, num_layers=6, num_heads=8, num_kv_heads=4, head_dim=32, d_ff=640,
    max_positions=1024, family="qwen3",
)  # fmt: skip
FAMILIES = {
    "llama": replace(BASE, family="llama", qk_norm=False),
    "qwen2": replace(BASE, family="qwen2", qk_norm=False, qkv_bias=True),
    "qwen3": BASE,
    "qwen3_moe": replace(BASE, family="qwen3_moe", num_experts=16, num_experts_per_tok=4, moe_d_ff=160),
}
CONVERSATIONS, TURNS, SHARED = 16, 4, 96


async def converse(
    decoder: Decoder, dtype: str, *, graphs: bool = False, swaps: Sequence[Decoder] = ()
) -> list[tuple[list[int], list[tuple[int, Completion]]]]:
    """Sample conversations on the decoder's device; return for each its tokens and (begin, completion) of its turns.

    After each of the first turns the engine changes to the next weights of ``swaps`` (versions 1, 2, ...), while other
    conversations sample; keys and values are computed again.
    """
    values = {"seed": 0, "prefill_tokens": 64, "dtype": dtype, "graphs": graphs}
    settings = EngineSettings.model_validate(values)
    engine = LocalEngine(copy.deepcopy(decoder), settings=settings, device=decoder.device)
    vocabulary = decoder.config.vocab_size
    start = np.random.default_rng(0).integers(0, vocabulary, SHARED).tolist()

    async def one(i: int) -> tuple[list[int], list[tuple[int, Completion]]]:
        own = np.random.default_rng(i + 1)
        tokens, done = start + own.integers(0, vocabulary, 40 + 5 * i).tolist(), []
        for turn in range(TURNS):
            completion = await engine.generate(tokens, Sampling(max_tokens=24), session=str(i))
            if i == 0 and turn < len(swaps):
                await engine.update_weights(turn + 1, hf_state(swaps[turn]), kv="recompute")
            done.append((len(tokens), completion))
            tokens = tokens + completion.tokens + own.integers(0, vocabulary, 16).tolist()
        return tokens, done

    try:
        return list(await asyncio.gather(*(one(i) for i in range(CONVERSATIONS))))
    finally:
        await engine.close()


def sequence(tokens: list[int], done: list[tuple[int, Completion]], config: DecoderConfig) -> Row:
    """Return the training row of a conversation, with the engine's log-probabilities (nan elsewhere) and experts."""
    behaviour = np.full(len(tokens), np.nan, np.float32)
    versions = np.full(len(tokens), -1, np.int32)
    routes = None
    if config.num_experts:
        routes = np.full((len(tokens), config.num_layers, config.num_experts_per_tok), -1, np.int16)
    for at, completion in done:
        behaviour[at : at + len(completion.tokens)] = completion.logprobs
        versions[at : at + len(completion.tokens)] = completion.versions
        if routes is not None and completion.routes is not None and completion.prompt_routes is not None:
            routes[at : at + len(completion.tokens)] = completion.routes
            routes[at - len(completion.prompt_routes) : at] = completion.prompt_routes
    weights = (~np.isnan(behaviour)).astype(np.float32)
    return Row(
        np.asarray(tokens, np.int32), {"rl": weights}, behaviour_logprobs=behaviour, versions=versions, routes=routes
    )


@torch.no_grad()
def trainer_side(decoder: Decoder, rows: list[Row], *, replay: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return |difference| of log-probabilities of every sampled token and, per micro-batch, whether the experts agree
    for each token and layer (empty with ``replay``)."""
    batch = pack(rows, id="parity", step=1, denominators={"rl": 1.0})
    used, gaps, agree = weighted(batch), [], []
    lengths = input_lengths(batch, used)
    for chosen in micro_batches(batch, lengths, 4096):
        micro = collate(batch, chosen, lengths, used, decoder.device)
        sink: list[torch.Tensor] = []
        routes = micro.routes_NLK if replay else None
        attention_fn = micro.attention_fn(decoder)
        hidden = decoder.forward(micro.tokens_N, micro.positions_N, attention_fn, routes=routes, route_sink=sink)
        logits = decoder.logits(hidden.index_select(0, micro.before_M))
        logp = logits.log_softmax(-1).gather(1, micro.target_M[:, None])[:, 0]
        gaps.append((logp - micro.behaviour_M).abs().cpu().numpy())
        if micro.routes_NLK is not None and not replay:
            own = torch.stack(sink, -2).sort(-1).values.cpu().numpy()
            theirs = micro.routes_NLK.sort(-1).values.cpu().numpy()
            known = (theirs >= 0).all(-1) & (own >= 0).all(-1)
            agree.append((own == theirs).all(-1)[known])
    return np.concatenate(gaps), agree


def random_decoder(config: DecoderConfig, seed: int = 0) -> Decoder:
    """Return a random policy whose distributions are far from uniform."""
    decoder = Decoder(config, seed=seed)
    with torch.no_grad():
        rng = torch.Generator().manual_seed(seed + 1)
        for parameter in decoder.parameters():
            if parameter.ndim == 1:  # initially ones or zeros, so that omitting the parameter would go unnoticed
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
        decoder.norm.mul_(8.0)
    return decoder


def measure(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    decoder = random_decoder(config)
    rows = [sequence(tokens, done, config) for tokens, done in asyncio.run(converse(decoder, dtype))]
    gaps, agree = trainer_side(decoder, rows, replay=False)
    out: dict[str, Any] = {
        "tokens": len(gaps),
        "max_abs_dlogp": float(gaps.max()),
        "p99_abs_dlogp": float(np.quantile(gaps, 0.99)),
    }
    if agree:
        replayed, _ = trainer_side(decoder, rows, replay=True)
        out["experts_agree"] = float(np.concatenate(agree).mean())
        out["max_abs_dlogp_replayed"] = float(replayed.max())
        out["p99_abs_dlogp_replayed"] = float(np.quantile(replayed, 0.99))
    return out


def main() -> None:
    from parity_random import measure_random  # imports transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=400, help="configurations drawn at random (default 400)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    detail: dict[str, Any] = {
        dtype: {name: measure(c, dtype) for name, c in FAMILIES.items()} for dtype in ("float32", "bfloat16")
    }
    figures: dict[str, float | None] = {}
    for name, found in detail["float32"].items():
        figures[f"{name}_max_abs_dlogp"] = found["max_abs_dlogp"]
        figures[f"{name}_p99_abs_dlogp"] = found["p99_abs_dlogp"]
    figures["qwen3_moe_experts_agree"] = detail["float32"]["qwen3_moe"]["experts_agree"]
    drawn, detail["random"] = measure_random(arguments.random, seed=arguments.seed)
    figures |= drawn
    write_result("parity", figures, detail)


if __name__ == "__main__":
    main()
