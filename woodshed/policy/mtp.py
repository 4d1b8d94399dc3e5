"""A multi-token-prediction (MTP) head: one more layer that drafts the token after the next (DeepSeek-V3, section 2.2).

At position i it sees the hidden state of position i - 1 and the token at i, and predicts what the network itself would
predict at i. Fed with its own output it continues from there, so one head drafts any number of tokens. It shares the
network's embedding and output matrix.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import safetensors
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .config import ConfigError, DecoderConfig
from .decoder import Decoder
from .layers import AttentionFn, Layer
from .state import layer_views

FILE = "mtp.safetensors"

Write = Callable[[int, Tensor, Tensor], None]
"""``write(layer, k [N, Hkv, Dh], v [N, Hkv, Dh])``."""


class MtpHead(nn.Module):
    """The MTP head of one decoder. Its layer has index ``num_layers`` and is dense even if the decoder is a mixture of
    experts. ``seed=None`` leaves the weights unset, for loading."""

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
        self.eps, self.index = config.norm_eps, config.num_layers
        dense = replace(config, mlp_only_layers=(*config.mlp_only_layers, self.index))
        with torch.device("meta"):
            self.embed_norm = nn.Parameter(torch.empty(config.d_model))
            self.hidden_norm = nn.Parameter(torch.empty(config.d_model))
            self.project = nn.Parameter(torch.empty(config.d_model, 2 * config.d_model))
            self.layer = Layer(dense, self.index)
            self.norm = nn.Parameter(torch.empty(config.d_model))
        self.to(dtype).to_empty(device=device)
        if seed is not None:
            self._init_weights(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _init_weights(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("norm"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * parameter.shape[-1] ** -0.5)

    def forward(
        self, decoder: Decoder, before: Tensor, tokens: Tensor, positions: Tensor, attention_fn: AttentionFn
    ) -> Tensor:
        """Predict hidden states ``[..., D]`` at ``positions``; ``decoder.logits`` of them predicts the next tokens.

        before: hidden states ``[..., D]`` one position earlier, of ``decoder.forward`` or of this head; 0 at position
        0. tokens, positions: int64 ``[...]``.
        """
        x, turn = self._enter(decoder, before, tokens, positions)
        x, _ = self.layer(x, turn, attention_fn, None, 0.0)
        return F.rms_norm(x, x.shape[-1:], self.norm, self.eps)

    def remember(self, decoder: Decoder, before: Tensor, tokens: Tensor, positions: Tensor, write: Write) -> None:
        """Compute only the keys and values that ``forward`` of later positions needs, and ``write`` them."""
        x, turn = self._enter(decoder, before, tokens, positions)
        _, _, k, v = self.layer.heads_of(x, turn)
        write(self.index, k, v)

    def _enter(self, decoder: Decoder, before: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        width = before.shape[-1:]
        embedded = F.rms_norm(F.embedding(tokens, decoder.embed), width, self.embed_norm, self.eps)
        hidden = F.rms_norm(before, width, self.hidden_norm, self.eps)
        x = F.linear(torch.cat((embedded, hidden), -1), self.project)
        return x, decoder.rotation(positions, x.dtype)


def mtp_state(head: MtpHead) -> dict[str, Tensor]:
    """Map DeepSeek-V3's checkpoint names to the head's tensors, as detached views."""
    return dict(_views(head))


def _views(head: MtpHead) -> Iterator[tuple[str, Tensor]]:
    prefix = f"model.layers.{head.index}."
    yield prefix + "enorm.weight", head.embed_norm.detach()
    yield prefix + "hnorm.weight", head.hidden_norm.detach()
    yield prefix + "eh_proj.weight", head.project.detach()
    for name, tensor in layer_views(head.layer):
        yield prefix + name, tensor.detach()
    yield prefix + "shared_head.norm.weight", head.norm.detach()


def save_mtp(head: MtpHead, directory: Path) -> None:
    """Write ``mtp.safetensors`` beside the network's weights, where other programs ignore it."""
    state = {name: tensor.cpu().contiguous() for name, tensor in mtp_state(head).items()}
    building = directory / f".{FILE}.{os.getpid()}"
    save_file(state, str(building), metadata={"format": "pt"})
    building.rename(directory / FILE)


def load_mtp(directory: Path, config: DecoderConfig, device: torch.device | str, dtype: torch.dtype) -> MtpHead | None:
    """Load the head of a policy's directory; None if it has none. Raises ConfigError if the head does not fit."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        state = load_file(str(path))
    except safetensors.SafetensorError as error:
        raise ConfigError(f"{path}: not a complete safetensors file ({error}); remove it to load no MTP head") from None
    head = MtpHead(config, seed=None, device=device, dtype=dtype)
    load_mtp_state(head, state, name=str(path))
    return head


def load_mtp_state(head: MtpHead, state: Mapping[str, Tensor], *, name: str) -> None:
    """Copy ``state`` into the head's own tensors. Raises ConfigError, before anything is written, if names or shapes
    differ."""
    views = mtp_state(head)
    wrong = sorted(views.keys() ^ state.keys()) or [n for n, v in views.items() if state[n].shape != v.shape]
    if wrong:
        raise ConfigError(f"{name}: {wrong[0]} does not fit this policy; remove the file or distil the head again")
    for key, view in views.items():
        view.copy_(state[key])
