"""The metrics of a run as TensorBoard event files: ``tensorboard --logdir RUN/tensorboard``.

The JSON lines in ``RUN/metrics`` are the primary record; the event files are made from them and can be made again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class TensorBoardMirror:
    """Follows ``metrics/*.jsonl`` of a run directory; every file becomes a TensorBoard run with its name."""

    def __init__(self, root: Path) -> None:
        self._source, self._target = root / "metrics", root / "tensorboard"
        self._read: dict[str, int] = {}

    def update(self) -> None:
        """Write events for new complete lines. If a file became shorter, it was started anew, and its events are
        rewritten. The first call deletes the event files of an earlier process."""
        if not self._read:
            shutil.rmtree(self._target, ignore_errors=True)
        for path in sorted(self._source.glob("*.jsonl")):
            read = self._read.get(path.stem, 0)
            if path.stat().st_size < read:
                read = 0
            with path.open("rb") as file:
                file.seek(read)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            if not data:
                continue
            folder = self._target / path.stem
            folder.mkdir(parents=True, exist_ok=True)
            moment = path.stat().st_mtime
            with (folder / "events.out.tfevents.0.woodshed").open("ab" if read else "wb") as events:
                if not read:
                    _add(events, Event(wall_time=moment, file_version="brain.Event:2"))
                for text in data.splitlines():
                    with contextlib.suppress(ValueError):  # a kill left half a line: ``read_jsonl`` skips it, too
                        _add(events, event(json.loads(text), moment))
            self._read[path.stem] = read + len(data)


def event(line: Mapping[str, Any], moment: float) -> Event:
    """Convert one metrics line. ``moment``: time to use if the line has none, in seconds since 1970."""
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(line) if tag != "step"]
    return Event(wall_time=line.get("time", moment), step=line["step"], summary=Summary(value=values))


def scalars(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a metrics line by name; those of nested objects as ``outer/inner``."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (bool, int, float)):
            yield f"{prefix}{key}", float(value)


def _add(file: BinaryIO, event: Event) -> None:
    RecordWriter(file).write(event.SerializeToString())
