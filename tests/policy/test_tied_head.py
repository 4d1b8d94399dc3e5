"""A head that differs from the embedding under ``tie_word_embeddings: true``: as transformers loads it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.policy.test_hf import LLAMA, our_logits, randomised, some_tokens, tokenizer
from woodshed.policy.config import ConfigError
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, hf_state, load_hf_state, load_policy, save_policy
from woodshed.policy.tokenizer import Tokenizer

__all__ = ["tokenizer"]


def cut(folder: Path) -> None:
    """The embedding in one file, the head in another, as large models are saved."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + (name == 'lm_head.weight')}-of-00002.safetensors" for name in state}
    for file in sorted(set(files.values())):
        save_file({n: t for n, t in state.items() if files[n] == file}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("same", [True, False])
def test_a_head_of_its_own_is_loaded_as_transformers_does(
    same: bool, sharded: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(LLAMA, tie_embeddings=False, vocab_size=max(LLAMA.vocab_size, tokenizer.vocab_size))
    decoder = randomised(config, seed=3)
    if same:
        decoder.head.data.copy_(decoder.embed.data)
    save_policy(Policy(decoder, tokenizer, get_format("compact"), config), tmp_path / "p")
    path = tmp_path / "p" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    if sharded:
        cut(tmp_path / "p")
    loaded = load_policy(tmp_path / "p")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "p", dtype=torch.float32)
    tokens = some_tokens(config)
    with torch.no_grad():
        assert (theirs(tokens).logits - our_logits(loaded.decoder, tokens)).abs().max() < 1e-4
    assert loaded.config.tie_embeddings is same
    if not same:
        with pytest.raises(ConfigError, match=r"lm_head\.weight differs"):
            load_hf_state(randomised(replace(config, tie_embeddings=True), seed=1), hf_state(decoder))
