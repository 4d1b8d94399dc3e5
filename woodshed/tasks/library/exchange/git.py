"""Write and read a bare git repository without a working tree."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from woodshed.record.task import TaskError
from woodshed.tasks.sources.repository import QUIET, blobs_of, git_command

_WHO = b"committer woodshed <woodshed@localhost> 0 +0000\n"


class GitRepository:
    """A bare repository; commits have no names and times, so equal files give equal commits. Raises TaskError if git is
    missing or fails."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # git runs in it, so GIT_DIR must not depend on the current folder
        if not (path / "HEAD").exists():
            path.mkdir(parents=True, exist_ok=True)
            self._git("init", "--quiet", "--bare")

    def commit(self, branch: str, files: Mapping[str, bytes], message: str) -> str:
        """Make ``branch`` one commit without a parent, and return its id."""
        text = message.encode()
        parts = [b"commit refs/heads/%s\n%sdata %d\n%s\ndeleteall\n" % (branch.encode(), _WHO, len(text), text)]
        for name, data in sorted(files.items()):
            parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (_quoted(name), len(data), data))
        self._git("update-ref", "-d", f"refs/heads/{branch}", may_fail=True)
        self._git("fast-import", "--quiet", stdin=b"".join(parts))
        return self._git("rev-parse", f"refs/heads/{branch}").decode().strip()

    def diff(self, before: str, after: str) -> str:
        """A patch for ``git apply``, with binary files and without renames."""
        flags = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--binary", "--full-index")
        return self._git("diff", *flags, before, after).decode("utf-8", "surrogateescape")

    def files(self, commit: str) -> dict[str, bytes]:
        """All files of a commit or tree: path -> content."""
        entries: dict[str, str] = {}
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", _checked(commit))
        for line in listed.decode("utf-8", "surrogateescape").split("\0"):
            head, _, name = line.partition("\t")
            if name and head.split()[0] in ("100644", "100755"):  # without links and submodules
                entries[name] = head.split()[2]
        digests = list(entries.values())
        answer = self._git("cat-file", "--batch", stdin="".join(f"{d}\n" for d in digests).encode())
        try:
            return dict(zip(entries, blobs_of(answer, digests), strict=True))
        except KeyError as error:
            raise TaskError(f"{self.path}: object {error.args[0][:12]} is missing; is this a partial clone?") from None

    def patched(self, commit: str, patch: str) -> dict[str, bytes]:
        """The files of a commit with a patch applied, through a temporary index: nothing is checked out."""
        index = {"GIT_INDEX_FILE": str(self.path / "index.exchange")}
        try:
            self._git("read-tree", _checked(commit), extra=index)
            if patch.strip():
                self._git(
                    "apply",
                    "--cached",
                    "--whitespace=nowarn",
                    "-",
                    stdin=patch.encode("utf-8", "surrogateescape"),
                    extra=index,
                )
            return self.files(self._git("write-tree", extra=index).decode().strip())
        finally:
            (self.path / "index.exchange").unlink(missing_ok=True)

    def _git(
        self, *arguments: str, stdin: bytes = b"", may_fail: bool = False, extra: Mapping[str, str] | None = None
    ) -> bytes:
        # Programs that the configuration of the user or of the repository names must not run.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment = {
            **clean,
            **QUIET,
            "GIT_DIR": str(self.path),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **(extra or {}),
        }
        try:
            done = subprocess.run(
                git_command(*arguments), input=stdin, capture_output=True, env=environment, cwd=self.path
            )
        except FileNotFoundError:
            raise TaskError("git is not installed, but instances refer to commits; install it") from None
        if done.returncode and not may_fail:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:]
            raise TaskError(f"{self.path}: git {arguments[0]} failed: {said}")
        return done.stdout


def _checked(commit: str) -> str:
    """``commit``, if it is all hex digits: anything else in an instance could be an option of git."""
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise TaskError(f"{commit!r} is not a commit; write all of its digits")
    return commit


def branch_name(name: str) -> str:
    """The name of the branch for a task; git refuses ``..`` in it and ``.lock`` at its end."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")
    return re.sub(r"\.(?=\.|lock$)", "-", plain) or "task"


def _quoted(name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")
    if any(c < 32 or c in b'"\\' for c in data):
        data = data.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        return b'"' + data + b'"'
    return data
