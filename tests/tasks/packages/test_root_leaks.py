"""The rest of a task's box: an answer in a layer or in a program of the host is found, chance is not."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.validate.leaks import N, answer_ngrams, tokenise
from woodshed.tasks.validate.root_leaks import FEW, FORMAT, RARE, NgramIndex, _kept, build_index, scan_root

from .test_leaks import tarred, zipped

ANSWER = Path(textwrap.__file__).read_bytes()
"""A file of the standard library, which every box shows."""
OWN = b"\n".join(
    f"def rule_{n}(left, right):\n    return shape_{n}(left, right, {n}) - measure_{n}(right, left)".encode()
    for n in range(12)
)


def _task(path: Path, solution: bytes, layers: tuple[str, ...] = ()) -> Task:
    info = TaskInfo(submission=("code.py",), fail_to_pass=("t::0",), pass_to_pass=("t::1",), layers=layers)
    return save_task(
        path,
        name="tests/leak",
        instruction="Write it.",
        info=info,
        workspace={"code.py": b"import re\n"},
        tests={"test.sh": b""},
        solution={"code.py": solution},
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("opt/site-packages/_vendor/code.py", OWN),
        ("opt/site-packages/bundled/code-1-py3-none-any.whl", zipped(OWN)),
        ("node_modules/x/code.tar.gz", tarred(OWN)),
        ("opt/bin/script", b"#!/usr/bin/env python3\n" + OWN),
    ],
)
def test_a_layer_that_holds_the_answer(tmp_path: Path, name: str, data: bytes) -> None:
    def fill(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(data)
        (folder / "opt/other.py").parent.mkdir(exist_ok=True)
        (folder / "opt/other.py").write_text("import os\n" * 40)

    layers = LayerStore(tmp_path / "layers")
    held = layers.add("held", fill)
    (leak,) = scan_root(_task(tmp_path / "task", OWN, (held,)), layers)
    assert leak.path == f"/{name}" and leak.share == 1.0
    assert scan_root(_task(tmp_path / "clean", OWN), layers) == []


def test_what_the_host_shows_is_read(tmp_path: Path) -> None:
    (leak,) = scan_root(_task(tmp_path, ANSWER), LayerStore(tmp_path / "layers"))
    assert leak.path.endswith("/textwrap.py") and leak.share > 0.9


def test_an_index_says_what_sets_of_ngrams_say(tmp_path: Path) -> None:
    """Shares of real files, against sets of tuples."""
    folder = Path(textwrap.__file__).parent
    names = ["textwrap.py", "shlex.py", "heapq.py", "bisect.py", "json/decoder.py"]
    index = build_index([(name, str(folder / name)) for name in names])
    assert (np.diff(index.hashes.astype(np.int64)) >= 0).all()
    texts = {name: tokenise((folder / name).read_text()) for name in names}
    sets = {name: set(zip(*(tokens[i:] for i in range(N)), strict=False)) for name, tokens in texts.items()}
    for name in names:
        wanted = {g for g in answer_ngrams({}, {name: (folder / name).read_bytes()}) if len(g) == N}
        leak = index.most(wanted)
        assert leak is not None and leak.path == name
        assert leak.share == pytest.approx(len(wanted & sets[name]) / len(wanted), abs=0.002)  # hashes of 32 bits
        mixed = set(sorted(wanted)[: len(wanted) // 3]) | {(f"x{i}", *"abcde") for i in range(len(wanted))}
        assert index.most(mixed) is None


def test_idioms_and_short_answers_are_no_leak() -> None:
    text = tokenise(OWN.decode())
    grams = list(zip(*(text[i:] for i in range(N)), strict=False))
    one = build_index([])
    assert one.most(grams) is None
    hashed = np.arange(5, dtype=np.uint32)
    assert NgramIndex(hashed, np.zeros(5, np.uint32), ["a"]).most(grams) is None


@pytest.mark.parametrize("copies", [1, RARE, RARE + 1])
def test_an_ngram_in_many_files_is_an_idiom(tmp_path: Path, copies: int) -> None:
    files = []
    for n in range(copies):
        (tmp_path / f"{n}.py").write_bytes(OWN)
        files.append((f"{n}.py", str(tmp_path / f"{n}.py")))
    wanted = {g for g in answer_ngrams({}, {"code.py": OWN}) if len(g) == N}
    assert len(wanted) > FEW
    assert (build_index(files).most(wanted) is None) == (copies > RARE)
    assert build_index(files).most(sorted(wanted)[: FEW - 1]) is None


def test_an_index_that_was_damaged_is_made_again_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.py").write_bytes(OWN)
    folder, files = tmp_path / "cache/ngrams", [("a.py", str(tmp_path / "a.py"))]
    made = np.array(_kept("layer", files).hashes)  # a copy: they lie in the file
    kept = folder / f"layer-{FORMAT}"
    for left, days in ((".new-killed", 2), ("host-old-1", 40), ("host-new-1", 3), (".new-living", 0)):
        (folder / left).mkdir()
        os.utime(folder / left, (time.time() - days * 86_400,) * 2)
    (kept / "hashes.npy").write_bytes(b"\x93NUMPY")
    again = _kept("layer", files)
    assert len(made) > FEW and np.array_equal(made, again.hashes) and again.names == ["a.py"]
    assert {p.name for p in folder.iterdir()} == {kept.name, "host-new-1", ".new-living"}
