"""Checkpoints: one directory per step, written atomically, from which training resumes exactly.

``step-000012/`` holds ``model.safetensors`` (Hugging Face names, float32), ``optimizer.safetensors`` and
``state.json`` with the step, the caller's state, and a checksum of both files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from woodshed.record.atomic import write_whole

log = logging.getLogger(__name__)

_FILES = ("model.safetensors", "optimizer.safetensors")
_NAME = re.compile(r"step-(\d{6,})")


class CheckpointError(Exception):
    """A checkpoint is damaged or does not fit; the message names the file."""


@dataclass
class Checkpoint:
    """``model`` by Hugging Face names (float32), ``optimizer`` as ``Optimizer.state``, ``state`` as saved."""

    path: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def steps(folder: Path | str) -> list[int]:
    """Return the steps that have a checkpoint directory, damaged or not, in ascending order."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name)))


def save_checkpoint(
    folder: Path | str,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    fsync: bool = True,
) -> Path:
    """Write the checkpoint of ``step``, replacing one of the same step, then delete all but the ``keep`` newest."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target, building = folder / f"step-{step:06d}", folder / f".step-{step:06d}.tmp"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    blobs = {
        _FILES[0]: save({k: v.detach().to("cpu", torch.float32, copy=True).contiguous() for k, v in model.items()}),
        _FILES[1]: save({k: v.detach().to("cpu", copy=True).contiguous() for k, v in optimizer.items()}),
    }
    sums = {name: xxhash.xxh3_128_hexdigest(blob) for name, blob in blobs.items()}
    blobs["state.json"] = json.dumps({**state, "step": step, "checksums": sums}, indent=1).encode()
    for name, blob in blobs.items():
        with open(building / name, "wb") as file:
            file.write(blob)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
    if target.exists():
        shutil.rmtree(target)
    building.rename(target)
    if fsync:
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"step-{old:06d}", ignore_errors=True)
    return target


def save_reference(
    folder: Path | str,
    step: int,
    model: Mapping[str, Tensor],
    *,
    keep: int,
    fsync: bool = True,
    name: str = "reference",
) -> None:
    """Save the policy as it is after ``step`` as a reference, then delete all but the ``keep`` newest with this
    ``name``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = save({k: v.detach().to("cpu", torch.float32, copy=True).contiguous() for k, v in model.items()})
    write_whole(folder / f"{name}-{step:06d}.safetensors", blob, fsync=fsync)
    names = re.compile(rf"{re.escape(name)}-(\d{{6,}})\.safetensors")
    found = sorted(int(m[1]) for p in folder.iterdir() if (m := names.fullmatch(p.name)))
    for old in found[:-keep]:
        (folder / f"{name}-{old:06d}.safetensors").unlink(missing_ok=True)


def load_reference(folder: Path | str, step: int, name: str = "reference") -> dict[str, Tensor]:
    """Load what ``save_reference`` saved. Raises CheckpointError."""
    path = Path(folder) / f"{name}-{step:06d}.safetensors"
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not the {name} of the steps after {step} ({error})") from None


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Load a checkpoint. Raises CheckpointError if a file is missing or does not match its checksum."""
    path = Path(path)
    try:
        state = json.loads((path / "state.json").read_bytes())
        sums, step = state.pop("checksums"), int(state["step"])
        blobs = {name: (path / name).read_bytes() for name in _FILES}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a complete checkpoint ({type(error).__name__}: {error})") from None
    for name, blob in blobs.items():
        if xxhash.xxh3_128_hexdigest(blob) != sums.get(name):
            raise CheckpointError(f"{path / name}: does not match its checksum in state.json")
    return Checkpoint(path, step, load(blobs[_FILES[0]]), load(blobs[_FILES[1]]), state)


def latest_checkpoint(folder: Path | str) -> Checkpoint | None:
    """Return the newest undamaged checkpoint; damaged ones are skipped with a warning. None if there is none."""
    for step in reversed(steps(folder)):
        try:
            return load_checkpoint(Path(folder) / f"step-{step:06d}")
        except CheckpointError as error:
            log.warning("skipped a checkpoint: %s", error)
    return None
