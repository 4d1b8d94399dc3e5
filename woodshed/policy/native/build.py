"""Compiles native kernels for this processor, and caches libraries under a hash of sources, flags and compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from woodshed.policy import processor
from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory

HERE = Path(__file__).parent
SHARED = (HERE / "vectors.h", HERE / "product.h")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
THREADS = ("-fopenmp",)
SECONDS = 120
PATIENCE = 120.0
"""Default seconds that ``library`` waits for a compilation. On a busy machine it takes longer, and goes on."""
COMPILE_SECONDS = 3600


@dataclass(frozen=True)
class Sources:
    """Sources of a library: one C++ file that includes ``headers`` from its own folder, and SHARED."""

    main: Path
    headers: tuple[str, ...] = ()


class NoKernels(Exception):
    """The kernels are not available here; the message says why."""


class StillCompiling(NoKernels):
    """The kernels are not compiled yet; another call of ``library`` waits for the same compilation."""


def library(sources: Sources, patience: float | None = None) -> ctypes.CDLL:
    """Return the kernels of ``sources``, compiled at the first call on this machine. Raises NoKernels, StillCompiling
    after ``patience`` seconds (default PATIENCE)."""
    seconds = PATIENCE if patience is None else patience
    build = _begun(sources)
    try:
        return build.result(seconds)
    except TimeoutError:
        raise StillCompiling(f"they are still being compiled after {seconds:.0f} s") from None
    except NoKernels:
        _begun.cache_clear()
        raise


@functools.cache
def _begun(sources: Sources) -> Future[ctypes.CDLL]:
    """Start a compilation in its own thread, which goes on while torch computes."""
    build: Future[ctypes.CDLL] = Future()

    def run() -> None:
        try:
            build.set_result(_library(sources))
        except Exception as error:
            build.set_exception(error)

    threading.Thread(target=run, name="native-build", daemon=True).start()
    return build


def _library(sources: Sources) -> ctypes.CDLL:
    compiler = _compiler()
    machine = platform.machine()
    tuned = "-mcpu=native" if machine in ("aarch64", "arm64") else "-march=native"
    name = f"{_digest(sources, compiler, tuned)}.so"
    try:
        path = cache_directory() / "native" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)  # raises before minutes of compiling if it cannot be written
            write_whole(path, _compiled(sources, compiler, tuned))
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{name} cannot be written or loaded; delete what is in the cache: {error}") from error
    if found.woodshed_registers() < 16 * 8:
        raise NoKernels(f"this processor ({machine}) has no vectors of eight numbers")
    return found


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise NoKernels("there is no C++ compiler (c++, g++ or clang++; CXX names another)")


def _digest(sources: Sources, compiler: str, tuned: str) -> str:
    """Return a hash of everything that the library depends on: sources, flags, compiler, processor."""
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoKernels(f"{compiler} does not run: {error}") from error
    headers = [sources.main.parent / name for name in sources.headers]
    parts = [path.read_bytes() for path in (*SHARED, *headers, sources.main)]
    parts += [repr((FLAGS, THREADS, tuned, platform.platform(), processor.kind())).encode(), version]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _compiled(sources: Sources, compiler: str, tuned: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="woodshed-native-") as folder:
        out = Path(folder, "kernels.so")
        command = [compiler, *FLAGS, tuned, "-I", str(HERE), "-o", str(out), str(sources.main)]
        complaint = ""
        for flags in (THREADS, ()):  # some compilers lack OpenMP; the kernels then use one thread
            try:
                done = subprocess.run([*command, *flags], capture_output=True, timeout=COMPILE_SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                raise NoKernels(f"{compiler} failed: {error}") from error
            if done.returncode == 0:
                return out.read_bytes()
            complaint = done.stderr.decode("utf-8", "replace").strip()
        raise NoKernels(f"{compiler} failed:\n{complaint[-2000:]}")
