"""Patches of datasets: applied in memory as git applies them, or refused with the reason."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.library.exchange.git import GitRepository
from woodshed.tasks.library.exchange.patches import apply_patch

FILES = {"src/a.py": b"one\ntwo\nthree\n", "src/b.py": b"x\n"}
HEAD = "diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/src/a.py\n"
CHANGE = HEAD + "@@ -1,3 +1,3 @@\n one\n-two\n+zwei\n three\n"


def place(name: str) -> str:
    return f"--- a/{name}\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"


def test_what_git_writes_is_applied(tmp_path: Path) -> None:
    """Random changes, odd names and missing ends of files among them: what git's own index makes of them."""
    rng = random.Random(7)
    repository = GitRepository(tmp_path / "r.git")
    names = ["a.py", "dir/b c.py", "ü.txt", 'q"uote\\.py', "deep/er/e.md"]
    for number in range(30):
        before, after = ({n: text(rng) for n in names if rng.random() < 0.7} for _ in range(2))
        after |= {n: edited(rng, data) for n, data in before.items() if rng.random() < 0.8}
        first, second = repository.commit("a", before, "a"), repository.commit("b", after, "b")
        patch = repository.diff(first, second)
        assert apply_patch(before, patch, "patch") == repository.patched(first, patch) == after, number


def text(rng: random.Random) -> bytes:
    lines = rng.choices(["", "a", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "é", "tail \r", "diff --git a/x b/x"], k=30)
    return "\n".join(lines).encode() + rng.choice([b"", b"\n", b"\n\n"])


def edited(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(lines))
        lines[at : at + rng.randrange(3)] = [b"new"] * rng.randrange(3)
    return b"\n".join(lines)


def test_a_rename_moves_a_file(tmp_path: Path) -> None:
    files = {"old.py": b"".join(b"line %d\n" % n for n in range(20))}
    moved = {"new name.py": files["old.py"].replace(b"line 7", b"line seven")}
    repository = GitRepository(tmp_path / "r.git")
    first, second = repository.commit("a", files, "a"), repository.commit("b", moved, "b")
    command = ["git", "--git-dir", str(repository.path), "diff", "-M", first, second]
    patch = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rename from old.py" in patch and apply_patch(files, patch, "patch") == moved


def test_modes_are_nothing_and_empty_files_are_files() -> None:
    mode = "diff --git a/src/a.py b/src/a.py\nold mode 100644\nnew mode 100755\n"
    empty = "diff --git a/src/new.py b/src/new.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    assert apply_patch(FILES, mode + empty, "patch") == {**FILES, "src/new.py": b""}
    assert apply_patch(FILES, "", "patch") == FILES


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        (CHANGE.replace(" three", " four"), r"does not apply: src/a\.py has other lines at 1$"),
        (CHANGE.replace("-1,3 +1,3", "-2,3 +2,3"), "has other lines at 2"),
        (CHANGE + CHANGE.removeprefix(HEAD), "has other lines at 1"),
        (HEAD + "@@ -9,0 +10 @@\n+ten\n", "has other lines at 9"),  # beyond the end of the file
        (CHANGE.replace("src/a.py", "src/c.py"), r"does not apply: src/c\.py is not there"),
        ("--- /dev/null\n+++ b/src/b.py\n@@ -0,0 +1 @@\n+x\n", "it makes src/b.py, which is there"),
        ("--- a/src/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", r"removes src/a\.py and keeps lines of it"),
        (place("../../etc/passwd"), "leaves the repository: '../../etc/passwd'"),
        (place("/etc/passwd"), "leaves the repository: '/etc/passwd'"),
        (place("src/.git/config"), "leaves the repository"),
        (place("src//a.py"), "leaves the repository"),
        ('--- "a/\\056\\056/x"\n+++ "b/\\056\\056/x"\n@@ -0,0 +1 @@\n+x\n', r"leaves the repository: '\.\./x'"),
        (HEAD.partition("---")[0] + "GIT binary patch\nliteral 1\n", "is binary: src/a.py"),
        (HEAD.partition("---")[0] + "Binary files a/src/a.py and b/src/a.py differ\n", "is binary: src/a.py"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "links or submod"),
        ("diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "copies files"),
        ("diff --git a/x b/y\nrename from ../x\nrename to y\n", "leaves the repository"),
        ("--- a/src/a.py\n+++ b/src/b.py\n@@ -1 +1 @@\n-one\n+two\n", "is no diff of git"),
        ("--- src/a.py\n+++ src/a.py\n@@ -1 +1 @@\n-one\n+two\n", "does not begin with a/"),
        ("please change two to zwei\n", "is no diff of git: line 1: 'please"),
        (CHANGE.replace("+1,3", "+1,9"), "ends too early"),
        (HEAD + "@@ one @@\n", "is no diff of git: line 4"),
    ],
)
def test_other_patches_are_refused(patch: str, says: str) -> None:
    before = dict(FILES)
    with pytest.raises(Rejected, match=says) as caught:
        apply_patch(before, patch, "test_patch")
    assert str(caught.value).startswith("its test_patch ") and before == FILES
