"""Rows that begin alike pay once for what they share.

Rollouts of one harness begin with the same system message and tool schemas, those of one group with the whole task. In
a causal decoder the states of those tokens depend on nothing after them, so a micro-batch computes them once and every
row attends to them. The gradient is that of the padded rows: what the rows send back into the shared keys and values
adds up.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Attend, causal_attend

WORTH = 0.1
"""Share of a micro-batch's positions that must be spared: attention with a mask is slower than plain causal one."""


def shared_length(tokens_BT: NDArray, predicts_BT: NDArray[np.bool_], routes: NDArray | None) -> int:
    """Number P of leading positions to compute once: equal in all rows (tokens, and experts ``[B, T, L, K]`` where
    they are replayed) and before each row's first position that predicts a weighted token. 0 where it saves little.
    """
    rows, width = tokens_BT.shape
    limit = int(predicts_BT.argmax(1).min())
    same_T = (tokens_BT[:, :limit] == tokens_BT[0, :limit]).all(0)
    if routes is not None:
        same_T &= (routes[:, :limit] == routes[0, :limit]).all((0, 2, 3))
    length = limit if same_T.all() else int(same_T.argmin())
    return length if length * (rows - 1) >= WORTH * rows * width else 0


def shared_prefix_attend(prefix: int, rows: int) -> Attend:
    """Attention over flat ``[N]`` tokens: ``prefix`` shared ones, then ``rows`` continuations of equal (padded) length.

    With a prefix of 0 it is ``causal_attend`` on ``[rows, N / rows]``.
    """
    causal = causal_attend()
    masks: list[Tensor] = []

    def attend(layer: int, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        q_BSHE, k_BSKE, v_BSKE = (x[prefix:].unflatten(0, (rows, -1)) for x in (q_NHE, k_NKE, v_NKE))
        if not prefix:
            return causal(layer, q_BSHE, k_BSKE, v_BSKE).flatten(0, 1)
        head = causal(layer, q_NHE[None, :prefix], k_NKE[None, :prefix], v_NKE[None, :prefix])
        k_BTKE, v_BTKE = (
            torch.cat((x[:prefix].expand(rows, -1, -1, -1), own), 1) for x, own in ((k_NKE, k_BSKE), (v_NKE, v_BSKE))
        )
        if not masks:  # one for all layers
            size = q_BSHE.shape[1]
            masks.append(torch.ones(size, prefix + size, dtype=torch.bool, device=q_NHE.device).tril(prefix))
        tail_BHSE = F.scaled_dot_product_attention(
            q_BSHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), attn_mask=masks[0],
            enable_gqa=q_BSHE.shape[2] != k_BTKE.shape[2],
        )  # fmt: skip
        return torch.cat((head[0], tail_BHSE.transpose(1, 2).flatten(0, 1)))

    return attend
