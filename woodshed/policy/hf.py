"""Policies on disk in Hugging Face layout; transformers opens what is saved here, and its directories open here."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from woodshed.policy.formats.base import ChatFormat
from woodshed.record.settings import is_reference

from .config import ConfigError, DecoderConfig
from .decoder import Decoder
from .formats import detect_format, format_name, get_format, is_loaded
from .mtp import MtpHead, load_mtp, save_mtp
from .state import hf_state, load_hf_state
from .tokenizer import Tokenizer, TokenizerError

__all__ = ["Policy", "hf_state", "load_decoder", "load_hf_state", "load_policy", "save_policy"]

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Policy:
    """A network plus tokenizer and chat format. ``version`` is the number of published optimizer steps; ``mtp`` is a
    draft head."""

    decoder: Decoder
    tokenizer: Tokenizer
    format: ChatFormat
    config: DecoderConfig
    version: int = 0
    mtp: MtpHead | None = None

    def stop_ids(self) -> tuple[int, ...]:
        """Return the ids of the format's stop tokens that the vocabulary has. Raises TokenizerError if it lacks the
        first."""
        return stop_ids(self.format, self.tokenizer)


def stop_ids(chat: ChatFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the format's stop tokens that the vocabulary has; the first ends an assistant message. Raises
    TokenizerError if the vocabulary lacks the first."""
    tokenizer.special_id(chat.stop_tokens[0])
    return tuple(tokenizer.special_ids[t] for t in chat.stop_tokens if t in tokenizer.special_ids)


def load_policy(
    directory: Path | str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    format: str | None = None,
) -> Policy:
    """Open a Hugging Face causal LM directory. Runs no code from it.

    ``dtype`` None means float32 on a CPU and the file's own dtype elsewhere. ``format`` None means the chat format that
    ``woodshed.json`` names; in a directory without that file, the format that the vocabulary was made for, and among
    formats that share a vocabulary the one of the chat template. Raises ConfigError, TokenizerError or
    FileNotFoundError, naming the file and what to do.
    """
    directory = Path(directory)
    config, tokenizer, chat, version = load_chat(directory, format=format)
    decoder = load_decoder(directory, device=device, dtype=dtype)
    config = decoder.config
    mtp = load_mtp(directory, config, device, decoder.dtype)
    return Policy(decoder, tokenizer, chat, config, version, mtp)


def load_decoder(
    directory: Path | str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """Open the network of a directory without its tokenizer and chat format. Raises as ``load_policy``."""
    directory = Path(directory)
    config = _read_config(directory)
    if dtype is None:
        raw = _read_json(directory / "config.json")
        stored = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
        dtype = torch.float32 if torch.device(device).type == "cpu" else DTYPES.get(stored, torch.float32)
    state = _read_weights(directory)
    if config.tie_embeddings and _own_head(state):
        log.warning("%s: tie_word_embeddings is true, but lm_head.weight differs; loaded untied", directory)
        config = replace(config, tie_embeddings=False)
    decoder = Decoder(config, seed=None, device=device, dtype=dtype)
    load_hf_state(decoder, state, name=str(directory))
    return decoder


def load_chat(directory: Path | str, *, format: str | None = None) -> tuple[DecoderConfig, Tokenizer, ChatFormat, int]:
    """Load everything of a policy but its weights; the number is its version. Raises as ``load_policy``."""
    directory = Path(directory)
    config = _read_config(directory)
    tokenizer_path = directory / "tokenizer.json"
    if not tokenizer_path.is_file():
        raise FileNotFoundError(f"{tokenizer_path} is missing; save the tokenizer in its fast form (tokenizer.json)")
    tokenizer = Tokenizer.load(tokenizer_path, size=config.vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{tokenizer_path}: {tokenizer.vocab_size} entries, but config.json has vocab_size {config.vocab_size}"
        )
    own = directory / "woodshed.json"
    extra = _read_json(own) if own.is_file() else {}
    try:
        if format is not None:
            chat = get_format(format)
        elif extra.get("format") is not None:
            chat = _stored(str(extra["format"]))
        else:
            chat = _detected(directory, tokenizer)
    except ValueError as error:
        raise TokenizerError(f"{directory}: {error}") from None
    try:
        stop_ids(chat, tokenizer)
    except TokenizerError as error:
        raise TokenizerError(f"{directory}: chat format {chat.name!r} does not fit the tokenizer: {error}") from None
    return config, tokenizer, chat, int(extra.get("version", 0))


def stored_format(directory: Path | str) -> ChatFormat:
    """Return the chat format of a directory that ``save_policy`` wrote. Raises ValueError."""
    return _stored(str(_read_json(Path(directory) / "woodshed.json").get("format")))


def _stored(name: str) -> ChatFormat:
    """Return the format that ``woodshed.json`` names. Raises ValueError.

    Opening a directory must not run code that the directory chooses, so a reference is followed only if settings of
    this process have named it.
    """
    if is_reference(name) and not is_loaded(name):
        raise ValueError(
            f"woodshed.json names the chat format {name!r}, which is not part of Woodshed; to have it imported, "
            "name it yourself (policy.format in a recipe, --format of woodshed serve)"
        )
    return get_format(name)


def _detected(directory: Path, tokenizer: Tokenizer) -> ChatFormat:
    """Return the format that the vocabulary and the chat template were made for. Raises ValueError."""
    template = directory / "chat_template.jinja"
    if template.is_file():
        return detect_format(tokenizer.special_ids, template.read_text(encoding="utf-8"))
    settings = directory / "tokenizer_config.json"
    stored = _read_json(settings).get("chat_template") if settings.is_file() else None
    return detect_format(tokenizer.special_ids, json.dumps(stored, ensure_ascii=False))


def save_policy(policy: Policy, directory: Path | str) -> Path:
    """Write the directory completely or not at all: it is built beside its final path and then renamed.

    An existing directory is replaced. Weights keep the decoder's dtype.
    """
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = directory.parent / f".{directory.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    building.mkdir()
    try:
        _write(policy, building)
        replaced = None
        if directory.exists():
            replaced = building.with_suffix(".old")
            directory.rename(replaced)
        building.rename(directory)
        if replaced is not None:
            shutil.rmtree(replaced)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return directory


def _write(policy: Policy, directory: Path) -> None:
    chat, tokenizer = policy.format, policy.tokenizer
    ends = stop_ids(chat, tokenizer)
    dtype_name = str(policy.decoder.dtype).removeprefix("torch.")
    special = {"eos_token": chat.stop_tokens[0]}
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": ends[0]}
    begin = chat.begin_token
    if begin is not None and begin in tokenizer.special_ids:
        special["bos_token"], ids["bos_token_id"] = begin, tokenizer.special_ids[begin]
    _write_json(directory / "config.json", {**policy.config.to_hf(), **ids, "torch_dtype": dtype_name})
    generation = {**ids, "eos_token_id": list(ends), "do_sample": True, "temperature": 1.0}
    _write_json(directory / "generation_config.json", {k: v for k, v in generation.items() if v is not None})
    tokenizer.save(directory / "tokenizer.json")
    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": policy.config.max_positions,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    template = chat.chat_template()
    if template is not None:
        tokenizer_config["chat_template"] = template
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    _write_json(directory / "woodshed.json", {"format": format_name(chat), "version": policy.version})
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in hf_state(policy.decoder).items()}
    save_file(state, str(directory / "model.safetensors"), metadata={"format": "pt"})
    if policy.mtp is not None:
        save_mtp(policy.mtp, directory)


def _read_config(directory: Path) -> DecoderConfig:
    try:
        return DecoderConfig.from_hf(_read_json(directory / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"{directory}: {error}") from None


def _read_weights(directory: Path) -> dict[str, Tensor]:
    """Load all tensors of ``model.safetensors``, or of the shards that ``model.safetensors.index.json`` names."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weight_map: Mapping[str, str] = _read_json(index).get("weight_map", {})
        files = sorted({directory / Path(name).name for name in weight_map.values()})
    else:
        files = [directory / "model.safetensors"]
    state: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing; only safetensors weights are read")
        try:
            state.update(load_file(str(file)))
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{file}: not a complete safetensors file ({error})") from None
    return state


def _own_head(state: Mapping[str, Tensor]) -> bool:
    """Return whether the head differs from the embedding; transformers then does not tie them, whatever the config
    says."""
    head, embed = state.get("lm_head.weight"), state.get("model.embed_tokens.weight")
    return head is not None and embed is not None and not torch.equal(head, embed)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; this is not a Hugging Face model directory") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return data


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
