"""Leak scan of a box outside the workspace: the layers of the task, and the host's programs that boxes can read.

An index of n-grams (see ``leaks.py``) tells which file holds how much of a solution. It is built once for each layer
(layers never change) and once for the current state of the host's programs, and is kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woodshed.record.cache import cache_directory
from woodshed.record.task import Task
from woodshed.sandbox.guest.masks import installed_packages
from woodshed.sandbox.guest.template import shown_folders
from woodshed.sandbox.layers import LayerStore

from .leak_readers import texts_of
from .leaks import THRESHOLD, Leak, N, answer_ngrams, tokenise

FORMAT = 1
FEW = 10
"""Solutions with fewer rare n-grams than this are not judged: any large file holds some by chance."""
RARE = 20
"""An n-gram that occurs in more files than this is an idiom and does not count."""
_MAX_BYTES = 16 << 20
_NEW = ".new-"
_CODE = (".py", ".pyi", ".pyx", ".pyw", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".map", ".ipynb")
_ARCHIVES = (".zip", ".whl", ".egg", ".pyz", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".txz", ".asar")

Files = Sequence[tuple[str, str]]
"""(path in a box, path on the host) of each file."""


def scan_root(task: Task, layers: LayerStore) -> list[Leak]:
    """Leaks of a task outside its workspace: at most one for each layer, and one for the host's programs.

    Reads files of Python and JavaScript, scripts without a suffix, and archives. Raises SandboxError for a missing
    layer.
    """
    wanted = {gram for gram in answer_ngrams(task.workspace_files(), task.solution_files()) if len(gram) == N}
    if len(wanted) < FEW:
        return []
    indices = [_index_of_layer(str(layers.path(name)), name) for name in task.info.layers]
    found = (index.most(wanted) for index in (*indices, index_of_host()))
    return [leak for leak in found if leak is not None]


@dataclass(frozen=True)
class NgramIndex:
    """Map from n-grams to files. ``hashes``: uint32 ``[G]``, sorted, one entry per n-gram and file; ``files``: uint32
    ``[G]``, indices into ``names``."""

    hashes: NDArray[np.uint32]
    files: NDArray[np.uint32]
    names: list[str]

    def most(self, wanted: Iterable[tuple[str, ...]]) -> Leak | None:
        """The file that holds most of the ``wanted`` n-grams (of N tokens), if it is a leak."""
        asked = np.unique(np.concatenate([_hashed(gram) for gram in wanted]))
        low, high = (np.searchsorted(self.hashes, asked, side) for side in ("left", "right"))
        rare = high - low <= RARE
        total = int(rare.sum())
        held = [self.files[a:b] for a, b in zip(low[rare], high[rare]) if b > a]
        if total < FEW or not held:
            return None
        counts = np.bincount(np.concatenate(held))
        worst = int(counts.argmax())
        share = float(counts[worst]) / total
        return Leak(self.names[worst], "text", share, f"{counts[worst]} of {total}") if share >= THRESHOLD else None


def build_index(files: Files) -> NgramIndex:
    """Index the n-grams of ``files`` and of files in archives. Unreadable files are left out."""
    hashes: list[NDArray[np.uint32]] = []
    owners: list[NDArray[np.uint32]] = []
    names: list[str] = []
    for shown, path in files:
        if len(own := _ngrams_of(path)):
            hashes.append(own)
            owners.append(np.full(len(own), len(names), np.uint32))
            names.append(shown)
    whole = np.concatenate(hashes) if hashes else np.zeros(0, np.uint32)
    order = np.argsort(whole, kind="stable")
    return NgramIndex(whole[order], np.concatenate(owners)[order] if owners else np.zeros(0, np.uint32), names)


def _ngrams_of(path: str) -> NDArray[np.uint32]:
    """Hashes of a file's n-grams, uint32, without duplicates."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return np.zeros(0, np.uint32)
    packed = path.endswith(_ARCHIVES)
    if not packed and (b"\0" in data[:4096] or not (path.endswith(_CODE) or data.startswith(b"#!"))):
        return np.zeros(0, np.uint32)
    texts = texts_of(data) if packed else [data.decode("utf-8", "replace")]
    return np.unique(np.concatenate([_hashed(tokenise(text)) for text in texts]))


def _hashed(tokens: Sequence[str]) -> NDArray[np.uint32]:
    """Hashes of the n-grams of ``tokens``, uint32 ``[len(tokens) - N + 1]``: the upper half of a polynomial in the
    hashes of N tokens, modulo 2^64."""
    count = len(tokens) - N + 1
    if count <= 0:
        return np.zeros(0, np.uint32)
    single = np.fromiter(map(_token, tokens), np.uint64, len(tokens))
    found = np.zeros(count, np.uint64)
    for i in range(N):
        found = found * np.uint64(0x9E3779B97F4A7C15) + single[i : i + count]
    return (found >> np.uint64(32)).astype(np.uint32)


@lru_cache(maxsize=1 << 17)
def _token(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest(), "little")


@lru_cache(maxsize=64)
def _index_of_layer(folder: str, name: str) -> NgramIndex:
    return _kept(name, [(f"/{os.path.relpath(path, folder)}", path) for path, _ in _readable(folder, frozenset())])


@cache
def index_of_host() -> NgramIndex:
    """Return the index of the host's programs that boxes can read. Making it takes ten seconds; the cache keeps it."""
    found = [f for place in shown_folders() for f in _readable(place, frozenset(installed_packages(place)))]
    sha = hashlib.sha256()
    for path, status in found:
        sha.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return _kept(f"host-{sha.hexdigest()[:24]}", [(path, path) for path, _ in found])


def _readable(place: str, masked: frozenset[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, status) of files below ``place`` that may be code or archives."""
    for folder, inside, names in os.walk(place):
        inside[:] = sorted(n for n in inside if n != "__pycache__" and f"{folder}/{n}" not in masked)
        for name in sorted(names):
            if name.endswith((*_CODE, *_ARCHIVES)) or "." not in name:
                with suppress(FileNotFoundError):  # removed since it was listed
                    status = os.lstat(f"{folder}/{name}")
                    if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
                        yield f"{folder}/{name}", status


def _kept(name: str, files: Files) -> NgramIndex:
    """The index of that name from the cache; built if it is not there or cannot be read."""
    place = cache_directory() / "ngrams" / f"{name}-{FORMAT}"
    with suppress(OSError, ValueError, EOFError):
        return _load(place)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _tidy(place.parent)
    work = Path(tempfile.mkdtemp(prefix=_NEW, dir=place.parent))
    try:
        made = build_index(files)
        np.save(work / "hashes.npy", made.hashes)
        np.save(work / "files.npy", made.files)
        (work / "names.json").write_text(json.dumps(made.names))
        with suppress(OSError):  # another process was faster
            work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _load(place)


def _load(place: Path) -> NgramIndex:
    hashes, owners = (np.load(place / f"{part}.npy", mmap_mode="r") for part in ("hashes", "files"))
    return NgramIndex(hashes, owners, json.loads((place / "names.json").read_text()))


def _tidy(folder: Path) -> None:
    """Remove unfinished indices of killed processes after a day, and indices of the host's programs after a month."""
    for path in folder.iterdir():
        days = {_NEW: 1, "host-": 30}.get(next((p for p in (_NEW, "host-") if path.name.startswith(p)), ""))
        with suppress(FileNotFoundError):
            if days is not None and time.time() - path.stat().st_mtime > days * 86_400:
                shutil.rmtree(path, ignore_errors=True)
