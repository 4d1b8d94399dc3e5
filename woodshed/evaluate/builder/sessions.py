"""Sessions: what people asked of an agent, and the lines that its edits wrote, from live trajectories and journals.

The label ``repository`` of a session names its repository (a remote's URL, the path of a clone, or the id of a root
commit); it is set by whoever opens the trajectory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.gateway.journal import JournalError, JournalledConversation, read_conversations
from woodshed.harness.errors import FORMAT_ERRORS, error_text
from woodshed.harness.settings import REQUEST
from woodshed.record.run_directory import DirectoryError
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory

from .lock import BenchmarkError

LABEL = "repository"
"""Label of a live trajectory that names the repository it worked on."""

_PATHS = ("path", "file_path", "filePath", "filename", "file")
_NEW = ("new_string", "new_str", "newString", "content", "contents", "file_text", "text", "insert_text")
_OLD = ("old_string", "old_str", "oldString")
_PATCH = ("patch", "input", "diff")
_NOTICES = tuple(error_text(kind, "") for kind in sorted(FORMAT_ERRORS))
"""How messages of our harness about the form of a reply begin. A user's own may begin with "Error:", too."""
_PATCHED = re.compile(r"^(?:\+\+\+ (?:b/)?|\*\*\* (?:Add|Update) File: )(\S+)")


@dataclass(frozen=True)
class Written:
    """A line that an edit wrote. ``path``: as the agent named the file; ``line``: as it was written."""

    path: str
    line: str


@dataclass(frozen=True)
class Session:
    """``asked``: texts of the user's messages; ``written``: lines of all accepted edits, in order. Times are Unix
    seconds; ``ended`` equals ``started`` if the end is not recorded."""

    id: str
    repository: str
    started: float
    ended: float
    asked: tuple[str, ...]
    written: tuple[Written, ...]


def read_sessions(stores: Iterable[Path], journals: Iterable[Path]) -> list[Session]:
    """Return the sessions in folders of stored trajectories and in journals of gateways, oldest first, each id once.

    Raises BenchmarkError for a folder without trajectories, a damaged index and a journal that cannot be read.
    """
    found: dict[str, Session] = {}
    for folder in stores:
        if not (folder / "index.sqlite").is_file():
            raise BenchmarkError(f"{folder}: no stored trajectories (index.sqlite); give the folder of a store")
        try:
            with closing(TrajectoryStore(folder)) as store:
                live = [row["id"] for row in store.rows("source = 'live'")]
                for trajectory in filter(None, map(store.get, live)):
                    if (session := session_of(trajectory)) is not None:
                        found[session.id] = session
        except DirectoryError as error:
            raise BenchmarkError(str(error)) from None
    for path in journals:
        try:
            conversations = read_conversations(path)
        except JournalError as error:
            raise BenchmarkError(f"{error}; give the file open.journal of a gateway") from None
        for conversation in conversations:
            if (session := session_of_conversation(conversation)) is not None:
                found.setdefault(session.id, session)
    return sorted(found.values(), key=lambda session: (session.started, session.id))


def session_of(trajectory: Trajectory) -> Session | None:
    """Return the session of a trajectory; None unless it is live. Without tool events, edits are read from messages."""
    if trajectory.source != "live":
        return None
    calls = [(e.name, e.arguments) for e in trajectory.events if e.error is None and not _failed(e.result)]
    if not trajectory.events:
        calls = list(_calls(trajectory.messages))
    return Session(
        id=trajectory.id,
        repository=trajectory.labels.get(LABEL, ""),
        started=trajectory.started,
        ended=max(trajectory.started, trajectory.ended),
        asked=_asked(trajectory.messages),
        written=tuple(line for _, arguments in calls for line in written_by(arguments)),
    )


def session_of_conversation(found: JournalledConversation) -> Session | None:
    """Return the session of a conversation in a gateway's journal; None unless it is live."""
    if found.about.get("source") != "live":
        return None
    messages: list[dict[str, Any]] = []
    for segment in found.messages:  # segments of one session share their beginning, which is taken once
        messages += [message for message in segment if message not in messages]
    labels = found.about.get("labels") or {}
    lines = tuple(line for _, arguments in _calls(messages) for line in written_by(arguments))
    return Session(found.id, str(labels.get(LABEL, "")), found.opened, found.opened, _asked(messages), lines)


def written_by(arguments: Mapping[str, Any] | None) -> Iterator[Written]:
    """Yield the lines that a tool call writes, found by the argument names of common agents; none for other tools.

    For a replacement, only lines that the replaced text did not have. Lines written by shell commands are not found.
    """
    if not arguments:
        return
    for name in _PATCH:
        if isinstance(arguments.get(name), str):
            yield from _patched(arguments[name])
    path = next((arguments[name] for name in _PATHS if isinstance(arguments.get(name), str)), "")
    if not path:
        return
    edits = arguments.get("edits")
    for edit in [arguments, *(edits if isinstance(edits, list) else ())]:
        if not isinstance(edit, dict):
            continue
        new = next((edit[name] for name in _NEW if isinstance(edit.get(name), str)), "")
        old = Counter(next((edit[name] for name in _OLD if isinstance(edit.get(name), str)), "").splitlines())
        for line in new.splitlines():
            if old[line] > 0:
                old[line] -= 1
            else:
                yield Written(path, line)


def _patched(text: str) -> Iterator[Written]:
    path = ""
    for line in text.splitlines():
        if head := _PATCHED.match(line):
            path = head[1]
        elif path and line.startswith("+"):
            yield Written(path, line[1:])


def _calls(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, arguments) of the calls in a conversation that did not fail."""
    results = {m.get("tool_call_id"): text_of(m.get("content")) for m in messages if m.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            try:
                arguments = json.loads(function.get("arguments") or "")
            except (TypeError, ValueError, RecursionError):
                continue
            if isinstance(arguments, dict) and not _failed(results.get(call.get("id"), "")):
                yield str(function.get("name", "")), arguments


def _failed(result: str) -> bool:
    """Return whether a result reports an error, judged by how errors of our and common harnesses begin."""
    return result.lstrip().lower().startswith(("error", "<tool_use_error>"))


def _asked(messages: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Return the texts of the user, without messages that our harness sends in the user's place (requests for a
    summary, format errors)."""
    texts = (text_of(message.get("content")) for message in messages if message.get("role") == "user")
    own = (REQUEST, *_NOTICES)
    return tuple(dict.fromkeys(text for text in texts if text.strip() and not text.startswith(own)))


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""
