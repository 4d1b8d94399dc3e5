"""Express the change of one line as a call of the edit tool that the recipe has."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from woodshed.harness.tools.edit_file import occurrences

_TOKEN = re.compile(r"\w+|\s+|[<>=!*/]+|.")


def edit_line_call(tools: Collection[str], path: str, line: int, old: str, new: str) -> tuple[str, dict[str, Any]]:
    """Return (tool, arguments) of the call that replaces line number ``line``, ``old``, by ``new``."""
    if "edit_words" in tools:
        before, after = differing_words(old, new) or (old.strip(), new.strip())
        return "edit_words", {"path": path, "line": line, "old": before, "new": after}
    return "edit_line", {"path": path, "line": line, "text": new}


def differing_words(old: str, new: str) -> tuple[str, str] | None:
    """Return the fewest words of ``old`` around the difference that occur only once in it, and their replacement.

    None if the lines are equal, or if all such words contain a tab or begin or end with white space.
    """
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    if before == after:
        return None
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    for width in range(len(before) + 1):
        for left in range(width + 1):
            low, high = start - left, end - (width - left)
            if low < 0 or high < 0:
                continue
            words = "".join(before[low : len(before) - high])
            becomes = "".join(after[low : len(after) - high])
            stripped = words.strip() == words and becomes.strip() == becomes
            if words and becomes and stripped and "\t" not in words and len(occurrences(old, words)) == 1:
                return words, becomes
    return None
