"""The engine's own CPU kernels: calls into the compiled library, and the choice between them and torch."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_long, c_void_p
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.engine.cache import RowCache
from woodshed.engine.packing import PackedLinear, packs
from woodshed.engine.settings import EngineSettings
from woodshed.policy.decoder import Decoder
from woodshed.policy.layers import Layer, rope_table
from woodshed.policy.native.build import COMPILE_SECONDS, NoKernels, Sources, StillCompiling, library
from woodshed.policy.processor import has_flags, zeros

log = logging.getLogger(__name__)

STEP = Sources(Path(__file__).parent / "step.cpp", ("attention.h",))

MOST_HEADS = 64
"""Maximum number of query heads that share one key head."""

MOST_TOKENS_BESIDE_TILES = 32
"""Maximum number of tokens of a bfloat16 step on processors with AMX tiles, which these kernels do not use; torch
computes larger steps. Chosen, not measured."""


def why_not(decoder: Decoder) -> str | None:
    """Return the reason why the kernels cannot compute this decoder, None if they can."""
    c = decoder.config
    if decoder.device.type != "cpu":
        return f"the engine computes on {decoder.device.type}"
    if c.num_experts:
        return "the policy has experts"
    if decoder.dtype not in (torch.float32, torch.bfloat16):
        return f"the weights are {str(decoder.dtype).removeprefix('torch.')}"
    if c.num_kv_groups > MOST_HEADS or (decoder.dtype == torch.bfloat16 and (c.d_model % 2 or c.d_ff % 2)):
        return "the policy has an unusual shape"
    return None


_VECTORS = ("attn_norm", "qkv_bias", "q_norm", "k_norm", "out_bias", "mlp_norm")
_MATRICES = ("queries", "pairs", "out", "gate_up", "down")


class _Layer(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in (*_VECTORS, *_MATRICES, "keys", "values")]


class _Policy(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff", "length")),
        ("eps", c_float),
        ("half", c_int32),
        ("embed", c_void_p),
        ("norm", c_void_p),
        ("rope", c_void_p),
        ("layer", c_void_p),
    ]


class Kernels:
    """Computes the same as ``decoder``, with copies of its matrices made by ``refresh``. Not thread-safe. Raises
    NoKernels if the library is not available; check ``why_not`` first."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._library = library(STEP)
        self._library.woodshed_packed_size.restype = c_long
        self._half = int(decoder.dtype == torch.bfloat16)
        self.beside_tiles = bool(self._half) and has_flags("amx_bf16")
        config = decoder.config
        self._rope = rope_table(config, torch.device("cpu"), torch.float32)
        self._vectors: dict[str, Tensor] = {}
        self._panels = self._room_for_panels()
        self._layers = (_Layer * config.num_layers)()
        self._policy = _Policy(
            config.num_layers,
            config.d_model,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.d_ff,
            0,
            config.norm_eps,
            self._half,
            decoder.embed.data_ptr(),
            None,
            self._rope.data_ptr(),
            ctypes.cast(self._layers, c_void_p),
        )
        self._memory: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        """Copy the decoder's weights again, after they changed."""
        decoder = self.decoder
        for i, (layer, out) in enumerate(zip(decoder.layers, self._layers)):
            for name in _VECTORS:
                setattr(out, name, self._vector(f"{i}.{name}", getattr(layer, name)))
            for name in _MATRICES:
                setattr(out, name, self._panels[f"{i}.{name}"].data_ptr())
        self._policy.norm = self._vector("norm", decoder.norm)
        for name, matrix in _matrices(decoder):
            self._pack(matrix, self._panels[name])

    def take(self, count: int) -> bool:
        """Return True if the kernels compute a step of ``count`` tokens, False if torch does."""
        return not self.beside_tiles or count <= MOST_TOKENS_BESIDE_TILES

    def forward(
        self,
        cache: RowCache,
        rows: NDArray[np.int64],
        positions: NDArray[np.int64],
        decoding: int,
        ends: NDArray[np.int64] | None,
    ) -> Tensor:
        """Compute a step and write its keys and values into the cache.

        Returns hidden states float32 ``[M, d_model]`` after the final norm of the tokens at ``rows``, ``positions``
        int64 ``[N]``, or only of those with index ``ends`` int64 ``[M]``. Each of the first ``decoding`` tokens is the
        only one of its row; the others form chunks of consecutive positions."""
        if self._memory is not cache.keys[0]:
            for out, keys, values in zip(self._layers, cache.keys, cache.values):
                out.keys, out.values = keys.data_ptr(), values.data_ptr()
            self._policy.length = cache.length
            self._memory = cache.keys[0]
        count = len(rows)
        wanted = count if ends is None else len(ends)
        tokens = cache.tokens[rows, positions].astype(np.int64)
        alone = np.arange(count, dtype=np.int64) < decoding
        whole = [np.ascontiguousarray(values, np.int64) for values in (tokens, rows, positions, alone)]
        some = None if ends is None else np.ascontiguousarray(ends, np.int64)
        x_ND = torch.empty(count, self._policy.d_model)
        out_MD = torch.empty(wanted, self._policy.d_model)
        failed = self._library.woodshed_step(
            byref(self._policy),
            c_int(torch.get_num_threads()),
            c_long(count),
            *(_at(values) for values in whole),
            None if some is None else _at(some),
            c_long(wanted),
            c_void_p(x_ND.data_ptr()),
            c_void_p(out_MD.data_ptr()),
        )
        if failed:
            raise MemoryError(f"no memory for a step of {count} tokens")
        return out_MD

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits float32 ``[N, V]`` of hidden states ``[N, d_model]``, accumulated in float32; with bfloat16 weights
        the hidden states are rounded to bfloat16 first."""
        hidden_ND = hidden_ND.float().contiguous()
        outputs, width = self.decoder.head_weight.shape
        out_NV = torch.empty(len(hidden_ND), outputs)
        failed = self._library.woodshed_linear(
            c_int(torch.get_num_threads()),
            c_int(self._half),
            c_long(len(hidden_ND)),
            c_long(outputs),
            c_long(width),
            c_void_p(hidden_ND.data_ptr()),
            c_void_p(self._panels["head"].data_ptr()),
            c_void_p(out_NV.data_ptr()),
        )
        if failed:
            raise MemoryError(f"no memory for the logits of {len(hidden_ND)} tokens")
        return out_NV

    def _room_for_panels(self) -> dict[str, Tensor]:
        """Memory for all packed matrices by name, in one allocation so that huge pages are used."""
        sizes = {
            name: self._library.woodshed_packed_size(*(c_long(size) for size in matrix.shape))
            for name, matrix in _matrices(self.decoder)
        }
        room = zeros((sum(sizes.values()),), self.decoder.dtype)
        return dict(zip(sizes, room.split(list(sizes.values()))))

    def _pack(self, matrix: Tensor, panels: Tensor) -> None:
        outputs, width = (c_long(size) for size in matrix.shape)
        panels_at = c_void_p(panels.data_ptr())
        self._library.woodshed_pack(c_int(self._half), outputs, width, c_void_p(matrix.data_ptr()), panels_at)

    def _vector(self, name: str, values: Tensor | None) -> int | None:
        if values is None:
            return None
        self._vectors[name] = values.detach().float().contiguous()
        return self._vectors[name].data_ptr()


def _matrices(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield all matrices ``[outputs, width]`` with their names (layer number and field, or "head")."""
    heads = decoder.config.num_heads * decoder.config.head_dim
    for i, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer)
        parts = (layer.qkv[:heads], layer.qkv[heads:], layer.out, layer.gate_up, layer.down)
        for name, matrix in zip(_MATRICES, parts):
            yield f"{i}.{name}", matrix.detach().contiguous()
    yield "head", decoder.head_weight.detach().contiguous()


def _at(values: NDArray[np.int64]) -> c_void_p:
    return c_void_p(values.ctypes.data)


class Backend:
    """Chooses what computes a decoder: these kernels if they can, else torch, with packed matrices if that is faster.

    ``kernels`` is None while torch computes; ``description`` tells users which of them computes and why.
    """

    def __init__(self, decoder: Decoder, settings: EngineSettings) -> None:
        self.decoder = decoder
        self.kernels: Kernels | None = None
        self.description = "native"
        self._compiling = False
        self._packed: PackedLinear | None = None
        refused = why_not(decoder) if settings.native == "auto" else "engine.native is off"
        if refused is not None:
            self.description = f"torch ({refused})"
        else:
            try:
                self.kernels = Kernels(decoder)
            except NoKernels as why:
                log.warning("torch computes, more slowly than the engine's own kernels: %s", why)
                self._compiling = isinstance(why, StillCompiling)
                self.description = f"torch ({why})"
        if settings.pack == "auto" and packs(decoder) and (self.kernels is None or self.kernels.beside_tiles):
            self._packed = PackedLinear(decoder)
            decoder.compute_with(self._packed)

    def refresh(self) -> None:
        """Update all copies of the decoder's matrices, after its weights changed."""
        if self.kernels is not None:
            self.kernels.refresh()
        if self._packed is not None:
            self._packed.refresh()

    def await_compilation(self, on_ready: Callable[[], None]) -> None:
        """Call ``on_ready`` from another thread once a compilation that is still running has finished."""
        if self._compiling:
            threading.Thread(target=self._wait, args=(on_ready,), name="await-kernels", daemon=True).start()

    def load(self) -> None:
        """Switch to the compiled kernels. Packed matrices stay: torch still computes the steps that kernels do not
        take."""
        self.kernels, self.description = Kernels(self.decoder), "native"
        log.info("the engine's own kernels compute from now on")

    def _wait(self, on_ready: Callable[[], None]) -> None:
        try:
            library(STEP, COMPILE_SECONDS)
        except NoKernels as why:
            self.description = f"torch ({why})"
            log.warning("torch keeps computing: %s", why)
        else:
            on_ready()
