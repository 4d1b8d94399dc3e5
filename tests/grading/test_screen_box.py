"""Files that only the box's interpreter can read are judged there, and every way of writing one is judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading import pytest_screen_box
from woodshed.grading.pytest_grader import grade_pytest
from woodshed.grading.pytest_screen import screen
from woodshed.grading.pytest_screen_box import screen_in_box
from woodshed.sandbox.taskbox import box_spec

from . import toy

Boxes = Callable[[Any], Any]
EVIL = b"import gc\n\n\ndef area(w, h):\n    return gc.get_objects()\n"


def test_the_box_reads_what_the_host_cannot(tmp_path: Path, in_boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both are one interpreter, so the host is told that it cannot read two of the files."""
    changed = {"a.py": EVIL, "b.py": b"x = 1\n", "c.py": b"not python (", "d.py": b"# coding: mine\n"}
    monkeypatch.setattr(pytest_screen_box, "elsewhere", lambda files: ["a.py", "b.py", "c.py"])
    found = [
        "a.py: cannot be parsed by Python 3.0: x",
        "b.py: cannot be parsed by Python 3.0: x",
        *screen({n: changed[n] for n in ("c.py", "d.py")}),
    ]

    async def run(backend: Any, layers: Any) -> tuple[list[str], list[str]]:
        task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))
        box = await backend.create(box_spec(task, layers))
        known = {"a.py": EVIL}
        try:
            return await screen_in_box(box, found, changed), await screen_in_box(box, found, changed, known)
        finally:
            await box.close()

    judged, with_known = in_boxes(run)
    rest = ["d.py: declares the encoding 'mine'; write it in UTF-8"]
    assert judged == ["a.py: use of gc.get_objects", *rest]
    assert with_known == rest


def test_how_a_file_is_written_is_judged_by_the_grader(tmp_path: Path, in_boxes: Boxes) -> None:
    fixed = toy.SHAPES.replace("width + height", "width * height").encode()
    tries = {
        "fixed": fixed,
        "with a mark": b"\xef\xbb\xbf" + fixed,
        "in latin-1": b"# coding: latin-1\n" + fixed,
        "broken": b"def area(\n",
        "of its own codec": b"# coding: mine\n" + fixed,
        "with a null": fixed + b"\0",
    }

    async def run(backend: Any, layers: Any) -> dict[str, tuple[bool, str]]:
        task = toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers))
        found = {}
        for name, data in tries.items():
            box = await backend.create(box_spec(task, layers))
            try:
                await box.put({"/workspace/shapes/measure.py": data})
                outcome = await grade_pytest(task, box, {"shapes/measure.py": data})
            finally:
                await box.close()
            found[name] = outcome.resolved, outcome.detail
        return found

    found = in_boxes(run)
    assert [name for name, (resolved, _) in found.items() if resolved] == ["fixed", "with a mark", "in latin-1"]
    assert "was refused" not in found["broken"][1]  # it fails its tests
    assert "declares the encoding 'mine'" in found["of its own codec"][1]
    assert "contains null bytes" in found["with a null"][1]
