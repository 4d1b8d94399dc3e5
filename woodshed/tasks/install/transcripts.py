"""What the roles said and did, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from woodshed.record.atomic import write_whole

from .roles import Transcript


def write_transcripts(transcripts: Iterable[Transcript], path: Path) -> None:
    """Role, how it ended, what it cost and all its messages. Nothing is written where no role was played."""
    lines = [
        json.dumps({
            "role": t.role, "status": t.episode.status, "error": t.episode.error,
            "turns": t.episode.effort.turns, "tool_calls": t.episode.effort.tool_calls,
            "messages": t.episode.messages,
        }) + "\n"
        for t in transcripts
    ]  # fmt: skip
    if lines:
        write_whole(path, "".join(lines))
