"""Confinement of the paths that a policy names. The sandbox is the security boundary; this keeps the agent honest."""

from __future__ import annotations

import posixpath

from .errors import ToolError

MAX_PATH = 1024


def confine(path: str, workdir: str) -> str:
    """The path relative to ``workdir`` (``.`` for itself). Absolute paths below it are accepted.

    Raises ToolError ``invalid_path`` (empty, NUL, not encodable, too long) or ``path_outside_workspace``.
    """
    if not path or "\x00" in path or len(path) > MAX_PATH:
        raise ToolError("invalid_path", f"a path has 1 to {MAX_PATH} characters and no NUL")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ToolError("invalid_path", "the path is not valid UTF-8") from None
    root = posixpath.normpath(workdir)
    full = posixpath.normpath(posixpath.join(root, path))
    if full == root:
        return "."
    prefix = root.rstrip("/") + "/"
    if not full.startswith(prefix):
        raise ToolError("path_outside_workspace", f"{path} is not below {root}")
    return full[len(prefix) :]
