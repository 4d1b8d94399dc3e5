"""Reword instructions by a policy behind a Chat Completions server.

A reply is used only if it names what the template names and does not give the answer away; otherwise the template's
text is kept, and the build counts the reason. Replies are stored on disk, so that a build asks for each only once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from woodshed.harness.endpoint import ChatEndpoint, HttpEndpoint
from woodshed.harness.errors import EndpointError
from woodshed.record.jsonl import JsonLines
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.validate.leaks import N, answer_ngrams, tokenise

MOST = {"normal": 1500, "terse": 600}
"""Maximum number of characters by level. ``precise`` instructions state an interface and are never reworded."""

_ASK = {
    "normal": "Rewrite this request to a programmer as the author of a good issue would: what is wrong or missing, "
    "where, and how one sees it.",
    "terse": "Rewrite this request to a programmer as a busy colleague would type it: one to three casual sentences, "
    "no headings, no lists, ambiguous where a colleague would be.",
}
_RULES = (
    " Keep the names of modules and functions that it names. Do not propose a solution, do not write code. Answer "
    "with the request alone.\n\n---\n"
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


class Reworder:
    """Rewords instructions; replies are stored in ``path``, by ``model`` and text. ``refused``: reason -> number of
    replies that were not used."""

    def __init__(self, endpoint: ChatEndpoint, model: str, path: Path) -> None:
        self.endpoint, self.model = endpoint, model
        self.refused: Counter[str] = Counter()
        self._path = path
        self._lines: JsonLines | None = None
        self._known: dict[str, tuple[str, str]] = {}

    def claim(self) -> None:
        """Create ``path``. Raises PackageError if its folder has tasks already: their texts would not be reworded."""
        if not self._path.exists() and any(self._path.parent.glob("*/task.toml")):
            raise PackageError(
                f"the tasks in {self._path.parent} have the template's words, and --prompt-policy does not change "
                "them: leave it away, or use another --out"
            )
        self._path.touch()

    async def reword(self, text: str, level: str, start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> str:
        """``text`` in the policy's words, or unchanged if its reply is refused. Raises PackageError without a reply."""
        if level not in MOST:
            return text
        lines = self._opened()
        key = hashlib.sha256(json.dumps([self.model, level, text]).encode()).hexdigest()
        if key not in self._known:
            answer = await self._ask(f"{_ASK[level]}{_RULES}{text}")
            why = objection(answer=answer, text=text, most=MOST[level], start=start, gold=gold)
            self._known[key] = (text if why else answer.strip() + "\n", why)
            lines.append({"key": key, "text": self._known[key][0], "refused": why})
        found, why = self._known[key]
        if why:
            self.refused[why] += 1
        return found

    def _opened(self) -> JsonLines:
        """Open the file on first use, so that a folder that is refused stays unchanged."""
        if self._lines is None:
            self._lines = JsonLines(self._path)
            self._known = {row["key"]: (row["text"], row["refused"]) for row in self._lines.rows()}
        return self._lines

    async def _ask(self, prompt: str) -> str:
        try:
            reply = await self.endpoint.complete([{"role": "user", "content": prompt}], [], max_tokens=1024)
        except EndpointError as error:
            raise PackageError(f"--prompt-policy: {error}; start the server, or leave the option away") from None
        return _THINKING.sub("", str(reply.message.get("content") or "")).strip()


def reworder(url: str, model: str, key_env: str, out: Path) -> Reworder | None:
    """The reworder of ``woodshed tasks build --prompt-policy URL``; None without a URL. PackageError without a key."""
    if not url:
        return None
    if key_env and not os.environ.get(key_env):
        raise PackageError(f"--prompt-key-env {key_env}: this environment variable is not set")
    endpoint = HttpEndpoint(url, os.environ.get(key_env, "none"), model, sampling={"temperature": 0.0})
    return Reworder(endpoint, model, out / ".prompts.jsonl")


def objection(answer: str, text: str, most: int, start: Mapping[str, bytes], gold: Mapping[str, bytes]) -> str:
    """Return the reason why ``answer`` may not replace ``text``, '' if it may. It must hold no n-gram of the solution
    that ``text`` lacks."""
    if not 20 <= len(answer) <= most:
        return "too short or too long"
    names = set(re.findall(r"`([^`\n]+)`", text)) | set(re.findall(r"\b\w+(?:\.\w+)+\b", text))
    parts = {name.rpartition(".")[2].rpartition("/")[2] for name in names}
    if parts and not any(re.search(rf"\b{re.escape(part)}\b", answer) for part in parts):
        return "names nothing of what it is about"
    tokens, own = tokenise(answer), tokenise(text)
    said = {tuple(tokens[i : i + N]) for i in range(len(tokens))} - {tuple(own[i : i + N]) for i in range(len(own))}
    if said & {gram for gram in answer_ngrams(start, gold) if len(gram) == N}:
        return "tells the answer"
    return ""
