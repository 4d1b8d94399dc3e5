"""A real server in its own process, and a tiny policy that has learned one conversation by heart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from woodshed.gateway.rendering import Rendering
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.policy.tokenizer import Tokenizer, train_bpe
from woodshed.record.segment import Segment

from .parts import ADMIN


@contextmanager
def server(directory: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    ready, key = directory / "ready.json", directory / "admin.key"
    ready.unlink(missing_ok=True)
    key.write_text(ADMIN + "\n")
    command = [sys.executable, "-m", "woodshed.gateway.serve", "--policy", str(directory / "policy")]
    command += ["--admin-key-file", str(key), "--ready-file", str(ready), "--max-tokens", "12", *flags]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    try:
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            time.sleep(0.05)
        answer = json.loads(ready.read_text())
        assert answer["pid"] == process.pid
        yield answer["url"], process
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def logprob_gap(decoder: Decoder, segment: Segment) -> float:
    """Largest difference between recorded log-probabilities and a full forward over the segment's tokens."""
    ids = torch.tensor(segment.tokens, dtype=torch.long)
    with torch.no_grad():
        hidden = decoder.forward(ids[None], torch.arange(len(ids))[None], causal_attend())
        logprobs = decoder.logits(hidden)[0].log_softmax(-1)
    at = torch.tensor(segment.sampled.nonzero()[0])
    wanted = logprobs[at - 1, ids[at]]
    return float((wanted - torch.tensor(segment.logprobs)[at]).abs().max())


def teach(directory: Path, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Decoder:
    """Save a policy that says the assistant's part of ``messages`` when it is sampled at temperature 0."""
    format = get_format("hermes")
    text = json.dumps([messages, tools], ensure_ascii=False).replace("\\n", "\n")
    tokenizer = Tokenizer(train_bpe([text] * 4, 700, format.special_tokens))
    rendering = Rendering(format, tokenizer)
    tokens: list[int] = []
    said: list[bool] = []
    for role, _, ids in rendering.parts(messages, 0, tools, opened=False)[:-1]:
        tokens += ids
        start = len(rendering.generation) if role == "assistant" else len(ids)
        said += [i >= start for i in range(len(ids))]
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        d_ff=128,
        max_positions=4096,
    )
    decoder = Decoder(config, seed=0)
    ids, at = torch.tensor(tokens), torch.tensor(said).nonzero()[:, 0]
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    for _ in range(400):
        hidden = decoder.forward(ids[None], torch.arange(len(ids))[None], causal_attend())
        loss = torch.nn.functional.cross_entropy(decoder.logits(hidden[:, at - 1])[0], ids[at])
        if loss.item() < 2e-3:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 2e-2, f"the policy did not learn the conversation: loss {loss.item():.3f}"
    save_policy(Policy(decoder, tokenizer, format, config), directory / "policy")
    return decoder
