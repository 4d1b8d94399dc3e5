"""The decoder-only transformer. Trainer and engine run the same code and differ only in their ``attention_fn``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import AttentionFn, causal_attend
from .config import DecoderConfig
from .layers import Layer, Linear, rope_table
from .operators import TORCH, Operators

__all__ = ["AttentionFn", "Decoder", "causal_attend"]

HEAD_BLOCK = 512
"""Rows of a half-precision output matrix that are converted to float32 at a time, so that they stay in the CPU's cache.
Converting all at once takes three to five times as long for a vocabulary of 49,152."""


class Decoder(nn.Module):
    """A decoder-only transformer (Llama, Qwen2, Qwen3, Qwen3-MoE).

    ``seed`` draws the weights for training from scratch; ``seed=None`` leaves them unset, for loading. ``recompute``
    (default False) recomputes each layer in the backward pass instead of keeping its activations. ``replay_ratio`` is
    the plausibility threshold of router replay, see ``moe.choose_experts``.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        self.linear: Linear = F.linear
        self.operators = TORCH
        self.replay_ratio = 0.0
        with torch.device("meta"):
            self.embed = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
            self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
            self.norm = nn.Parameter(torch.empty(config.d_model))
            self.head = None
            if not config.tie_embeddings:
                self.head = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        self.to(dtype).to_empty(device=device)
        self._table: Tensor | None = None
        if seed is not None:
            self.init_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Set norms to 1 and biases to 0; draw embedding, head and router with std 0.02, matrices with std 1/sqrt(fan
        in), and divide those that write to the residual stream by sqrt(2 layers) (GPT-2, Radford et al. 2019, section
        2.3)."""
        residual_scale = (2 * self.config.num_layers) ** -0.5
        for name, parameter in self.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf.endswith("norm"):
                parameter.fill_(1.0)
            elif leaf.endswith("bias"):
                parameter.zero_()
            else:
                std = 0.02 if leaf in ("embed", "head", "router") else parameter.shape[-1] ** -0.5
                if leaf in ("out", "down"):
                    std *= residual_scale
                # Drawn on the CPU in fp32, so that a seed gives the same weights on every device and dtype.
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def compute_with(self, linear: Linear | None = None, operators: Operators | None = None) -> None:
        """Use ``linear`` for matrix products and ``operators`` between them instead of torch's own. Experts keep
        torch's."""
        self.linear = linear or self.linear
        self.operators = operators or self.operators
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.linear, layer.operators = self.linear, self.operators

    @property
    def head_weight(self) -> Tensor:
        """Output matrix ``[V, D]``; the embedding itself when tied."""
        return self.embed if self.head is None else self.head

    @property
    def num_parameters(self) -> int:
        """Number of distinct parameters; a tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention_fn: AttentionFn,
        *,
        routes: Tensor | None = None,
        route_sink: list[Tensor] | None = None,
        ends: Tensor | None = None,
    ) -> Tensor:
        """Compute hidden states ``[..., D]`` after the final norm.

        tokens, positions: int64 ``[...]`` of the same shape; a position must be below ``config.max_positions``.
        routes: integer ``[..., L, K]``, experts to replay (-1: own choice for that slot; ignored in dense layers).
        route_sink: gets one int16 ``[..., K]`` per layer appended, -1 in dense layers; ``torch.stack(sink, -2)`` is
        the ``routes`` of the same tokens.
        ends: int64 ``[M]``, indices into tokens ``[N]``; only their hidden states are returned, ``[M, D]``, and the
        last layer's ``attention_fn`` gets only their queries. Not together with route_sink.
        Raises IndexError for a token or position out of range.
        """
        if ends is not None and route_sink is not None:
            raise ValueError("ends cannot be combined with route_sink, which gets the routes of all positions")
        x = F.embedding(tokens, self.embed)
        turn = self.rotation(positions, x.dtype)
        remember = self.recompute and torch.is_grad_enabled()
        for i, layer in enumerate(self.layers):
            replay = None if routes is None else routes[..., i, :]
            wanted = ends if i == len(self.layers) - 1 else None
            if remember:
                x, chosen = checkpoint(
                    layer, x, turn, attention_fn, replay, self.replay_ratio, wanted, use_reentrant=False
                )
            else:
                x, chosen = layer(x, turn, attention_fn, replay, self.replay_ratio, wanted)
            if route_sink is not None:
                if chosen is None:
                    chosen = tokens.new_full((*tokens.shape, self.config.num_experts_per_tok), -1)
                route_sink.append(chosen.to(torch.int16))
        return self.operators.add_norm(x, None, self.norm, self.config.norm_eps)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits float32 ``[..., V]`` of hidden ``[..., D]``, accumulated in float32 whatever the weights' dtype."""
        weight = self.head_weight
        if weight.dtype == torch.float32:
            if hidden.is_cuda and torch.is_autocast_enabled("cuda"):  # see operators.products_in
                with torch.autocast("cuda", enabled=False):
                    return self.linear(hidden.float(), weight, None)
            return self.linear(hidden, weight, None)
        if hidden.is_cuda and not torch.is_grad_enabled():
            flat = torch.mm(hidden.reshape(-1, hidden.shape[-1]), weight.t(), out_dtype=torch.float32)
            return flat.view(*hidden.shape[:-1], -1)
        hidden = hidden.float()
        if torch.is_grad_enabled() or weight.device.type != "cpu":
            return F.linear(hidden, weight.float())
        out = hidden.new_empty((*hidden.shape[:-1], len(weight)))
        for start in range(0, len(weight), HEAD_BLOCK):
            block = weight[start : start + HEAD_BLOCK].float()
            out[..., start : start + HEAD_BLOCK] = F.linear(hidden, block)
        return out

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Look up the rows ``[..., 2 Dh]`` of ``rope_table``, which all layers share."""
        return F.embedding(positions, self._rope(dtype))

    def _rope(self, dtype: torch.dtype) -> Tensor:
        table = self._table
        if table is None or table.device != self.device or table.dtype != dtype:
            table = self._table = rope_table(self.config, self.device, dtype)
        return table
