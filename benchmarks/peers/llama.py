"""llama.cpp behind the interface of a peer: the policy as a GGUF file, and a worker in another environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from peers.table import Reply
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state

WORKER = Path(__file__).parent / "llama_worker.py"
LINE = 1 << 26
"""Longest answer in bytes."""


def write_gguf(decoder: Decoder, path: Path, *, half: bool) -> None:
    """The policy for llama.cpp, without a vocabulary; matrices in float16 where ``half``, else all in float32."""
    c = decoder.config
    if c.family not in ("llama", "qwen3"):
        raise ValueError(f"a policy of family {c.family!r} is not written as GGUF here; only llama and qwen3 are")
    writer = gguf.GGUFWriter(path, c.family)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(c.vocab_size)
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.d_model)
    writer.add_block_count(c.num_layers)
    writer.add_feed_forward_length(c.d_ff)
    writer.add_head_count(c.num_heads)
    writer.add_head_count_kv(c.num_kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    architecture = gguf.MODEL_ARCH.LLAMA if c.family == "llama" else gguf.MODEL_ARCH.QWEN3
    names = gguf.get_tensor_name_map(architecture, c.num_layers)
    for name, tensor in hf_state(decoder).items():
        array = tensor.float().numpy()
        if c.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            array = adjacent_pairs(array, c.num_heads if "q_proj" in name else c.num_kv_heads)
        to = names.get_name(name, try_suffixes=(".weight",))
        if to is None:
            raise ValueError(f"{name} has no name in GGUF")
        writer.add_tensor(to, array.astype(np.float16) if half and array.ndim == 2 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def adjacent_pairs(weight_OD: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a q or k projection from halves to GGUF's order for Llama; undoes ``woodshed.policy.gguf.half_split``."""
    halves = weight_OD.reshape(heads, 2, -1, weight_OD.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight_OD.shape))


class Llama:
    """The worker's pipes."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    async def read(self) -> dict[str, list]:
        """Raises RuntimeError with the end of the worker's log where it is gone."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp's worker ended:\n{self._log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    async def sample(self, asks: list[list[int]], tokens: int) -> list[Reply]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": asks, "tokens": tokens}).encode() + b"\n")
        answer = await self.read()
        return [Reply(ids, logprobs) for ids, logprobs in zip(answer["tokens"], answer["logprobs"])]


@asynccontextmanager
async def llama(
    python: str, decoder: Decoder, folder: Path, *, half: bool, slots: int, length: int
) -> AsyncIterator[Llama]:
    """A worker for as long as the block runs; its files are in ``folder``. Matrices, keys and values are float16 where
    ``half``, else float32. Raises RuntimeError where it does not start."""
    kind = "F16" if half else "F32"
    path, log = folder / f"{kind}.gguf", folder / f"llama-{kind}.log"
    write_gguf(decoder, path, half=half)
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            python,
            str(WORKER),
            str(path),
            str(slots),
            str(length),
            kind,
            limit=LINE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    worker = Llama(process, log)
    try:
        await worker.read()
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
