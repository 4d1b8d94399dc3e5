"""transformers: ``generate``, its continuous batching, and the full forward that log-probabilities are held against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from peers.table import Reply
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state


def reference(decoder: Decoder, dtype: torch.dtype) -> Any:
    """The same network in transformers, with weights of its own in ``dtype``."""
    fields = {**decoder.config.to_hf(), "attn_implementation": "sdpa"}
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.load_state_dict({name: tensor.clone() for name, tensor in hf_state(decoder).items()}, strict=False)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(do_sample=True, top_k=0, pad_token_id=0, eos_token_id=None)
    return model


def full_logprobs(model: Any, sequence: list[int]) -> torch.Tensor:
    """Log-probabilities ``[T, V]`` of a full forward: row t is the distribution of token t + 1."""
    with torch.inference_mode():
        return model(torch.tensor([sequence])).logits[0].float().log_softmax(-1)


def gap_after(logp_TV: torch.Tensor, prompt: list[int], tokens: list[int], logprobs: list[float]) -> float:
    """Largest difference between reported log-probabilities and ``full_logprobs`` of the sequence."""
    at = torch.arange(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    return float((logp_TV[at, torch.tensor(tokens)] - torch.tensor(logprobs)).abs().max())


class Generate:
    """``generate`` on prompts of equal length, so it pays no padding. It is not asked for log-probabilities."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def sample(self, asks: list[list[int]], tokens: int) -> list[Reply]:
        with torch.inference_mode():
            out = self.model.generate(torch.tensor(asks, device=self.model.device), max_new_tokens=tokens)
        return [Reply(row[len(asks[0]) :], None) for row in out.tolist()]


class ContinuousBatching:
    """One running ``ContinuousBatchingManager``."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def sample(self, asks: list[list[int]], tokens: int) -> list[Reply]:
        """Raises RuntimeError with what transformers says where a request fails."""
        names = self._manager.add_requests(asks, max_new_tokens=tokens)
        done: dict[str, Reply] = {}
        while len(done) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("transformers' continuous batching stopped")
                continue
            if result.error is not None:
                raise RuntimeError(f"transformers' continuous batching: {result.error}")
            if result.is_finished():
                done[result.request_id] = Reply(result.generated_tokens, result.logprobs)
        return [done[name] for name in names]


@contextmanager
def continuous_batching(model: Any, *, requests: int, longest: int) -> Iterator[ContinuousBatching]:
    """Sized for ``requests`` of ``longest`` tokens at once; its own choice takes most of the machine's memory."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig  # not in every transformers 5

    page = 32
    sizes = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=requests * (-(-longest // page) + 1),
        max_batch_tokens=512,
        max_requests_per_batch=requests,
        return_logprobs=True,
        seed=0,
    )
    asked = transformers.GenerationConfig(do_sample=True, top_k=0, pad_token_id=0, eos_token_id=-1)
    implementation = model.config._attn_implementation
    try:
        with model.continuous_batching_context_manager(
            generation_config=asked, continuous_batching_config=sizes, warmup=False
        ) as manager:
            yield ContinuousBatching(manager)
    finally:
        model.set_attn_implementation(implementation)
