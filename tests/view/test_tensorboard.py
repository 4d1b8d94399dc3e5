"""Event files that TensorBoard's own reader understands."""

from __future__ import annotations

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from woodshed.view.tensorboard import TensorBoardMirror


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_new_lines_are_taken_over_and_a_file_begun_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "sft.jsonl"
    path.parent.mkdir()
    lines = [json.dumps({"step": n, "loss": 2.0**-n, "effort": {"turns": n}, "note": "x"}) + "\n" for n in range(1, 5)]
    mirror = TensorBoardMirror(tmp_path)
    mirror.update()
    path.write_text("".join(lines[:2]) + lines[2][:9])  # the third line is being written
    mirror.update()
    assert read(tmp_path / "tensorboard" / "sft") == {"loss": [(1, 0.5), (2, 0.25)], "effort/turns": [(1, 1), (2, 2)]}
    path.write_text("".join(lines))
    mirror.update()
    assert read(tmp_path / "tensorboard" / "sft")["effort/turns"] == [(n, n) for n in range(1, 5)]
    path.write_text(lines[3])
    mirror.update()
    assert read(tmp_path / "tensorboard" / "sft") == {"loss": [(4, 0.0625)], "effort/turns": [(4, 4.0)]}


def test_half_a_line_of_a_killed_process_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "rl.jsonl"
    path.parent.mkdir()
    path.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo{"step": 2, "loss": 0.25}\n{"step": 3, "loss": 1.5}\n')
    TensorBoardMirror(tmp_path).update()
    assert read(tmp_path / "tensorboard" / "rl") == {"loss": [(1, 0.5), (3, 1.5)]}
