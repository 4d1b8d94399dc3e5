"""Reading folders and commits: exact bytes, nothing of the repository is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from woodshed.record.task import TaskError
from woodshed.tasks.library.exchange.git import GitRepository
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import read_sdist
from woodshed.tasks.sources.obtain import obtain
from woodshed.tasks.sources.repository import Objects, pack, read_folder, read_repository, write_bundle
from woodshed.tasks.sources.spec import parse_source

from . import repos

FILES = {"a.py": b"x = 1\r\n", "sub/b.txt": b"", "\xe4 b/c.py": b"\xff\0"}


def test_a_commit_is_read_exactly(tmp_path: Path) -> None:
    first = repos.repository(tmp_path / "r", FILES)
    (tmp_path / "r" / "link").symlink_to("/etc/passwd")
    repos.write(tmp_path / "r", {"a.py": b"x = 2\n"})
    repos.git(tmp_path / "r", "add", "-A")
    repos.git(tmp_path / "r", "commit", "-q", "-m", "two")
    old = read_repository(str(tmp_path / "r"), first)
    assert (dict(old.files), old.commit, old.notes) == (FILES, first, ())
    assert read_repository(str(tmp_path / "r"), first[:10]).commit == first
    new = read_repository(f"file://{tmp_path}/r", "")
    assert new.files["a.py"] == b"x = 2\n" and "link" not in new.files and "1 links" in new.notes[0]
    repos.write(tmp_path / "r", {"a.py": b"x = 3\n"})
    assert any("uncommitted changes are left out" in n for n in read_repository(str(tmp_path / "r"), "").notes)


def test_a_name_that_is_not_utf8_is_left_out(tmp_path: Path) -> None:
    """Such a file once made a clean repository one with uncommitted changes, and got another name in the tasks."""
    repos.repository(tmp_path / "r", FILES)
    odd = os.fsencode(tmp_path / "r") + b"/caf\xe9.py"
    with open(odd, "wb") as file:
        file.write(b"x = 1\n")
    assert read_folder(tmp_path / "r").files.keys() == FILES.keys()
    repos.git(tmp_path / "r", "add", "-A")
    repos.git(tmp_path / "r", "commit", "-q", "-m", "two")
    read = read_repository(str(tmp_path / "r"), "")
    assert read.files == FILES
    assert [note.partition(" ")[0] for note in read.notes] == ["1"] and "not UTF-8" in read.notes[0]


def test_archives_depend_on_the_files_alone(tmp_path: Path) -> None:
    data = pack(FILES, "top")
    assert data == pack(dict(reversed(list(FILES.items()))), "top")
    (tmp_path / "a.tar.gz").write_bytes(data)
    assert read_sdist(tmp_path / "a.tar.gz") == FILES


def test_nothing_of_a_repository_is_run(tmp_path: Path) -> None:
    repos.repository(tmp_path / "r", {".gitattributes": b"*.py filter=evil diff=evil\n", "a.py": b"1\n"})
    repos.write(tmp_path / "r", {"a.py": b"2\n"})
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    script.chmod(0o755)
    with (tmp_path / "r" / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = {script}\n\tpager = {script}\n[filter "evil"]\n\tclean = {script}\n')
        config.write(f'\tsmudge = {script}\n\trequired = true\n[diff "evil"]\n\ttextconv = {script}\n')
    for hook in ("post-checkout", "pre-commit", "reference-transaction"):
        (tmp_path / "r" / ".git" / "hooks" / hook).symlink_to(script)
    assert read_repository(str(tmp_path / "r"), "").files["a.py"] == b"1\n"
    assert read_repository(f"file://{tmp_path}/r", "").files["a.py"] == b"1\n"
    assert not (tmp_path / "ran").exists()


def test_a_partial_clone_fetches_nothing_by_the_program_that_it_names(tmp_path: Path) -> None:
    origin, clone, ran = tmp_path / "origin", tmp_path / "clone", tmp_path / "ran"
    repos.repository(origin, {"a.py": b"1\n", "b.py": b"2\n"})
    repos.git(origin, "config", "uploadpack.allowFilter", "true")
    repos.git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{origin}", str(clone))
    script = tmp_path / "evil"
    script.write_text(f'#!/bin/sh\ntouch {ran}\nexec git-upload-pack "$@"\n')
    script.chmod(0o755)
    repos.git(clone, "config", "remote.origin.uploadpack", str(script))
    with pytest.raises(PackageError):
        read_repository(str(clone), "")
    with pytest.raises(PackageError):
        read_repository(f"file://{clone}", "")
    with pytest.raises(TaskError, match=r"promisor remote|partial clone"):
        GitRepository(clone / ".git").files(repos.git(clone, "rev-parse", "HEAD"))
    assert not ran.exists()
    repos.git(clone, "checkout", "-q", "HEAD")  # a person's own git does what the configuration says
    assert ran.exists()


def test_a_shallow_clone_is_used_without_its_history(tmp_path: Path) -> None:
    repos.repository(tmp_path / "r", FILES)
    repos.git(tmp_path / "r", "commit", "-q", "--allow-empty", "-m", "two")
    repos.git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}/r", "shallow")
    spec = parse_source(str(tmp_path / "shallow"))
    package, files, notes = obtain(spec, "shallow", tmp_path / "out", history=True)
    assert files == FILES and package.history == ""
    assert any("shallow clone" in note and "git fetch --unshallow" in note for note in notes)
    repos.git(tmp_path / "shallow", "fetch", "-q", "--unshallow")
    package, _, notes = obtain(spec, "shallow", tmp_path / "out", history=True)
    assert package.history and notes == []


def test_a_hook_of_another_repository_may_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repos.repository(tmp_path / "r", FILES)
    repos.repository(tmp_path / "other", {"other.py": b""})
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other" / ".git" / "index"))
    found = read_repository(str(tmp_path / "r"), "")
    assert (dict(found.files), found.commit, found.notes) == (FILES, commit, ())
    assert write_bundle(str(tmp_path / "r"), commit, tmp_path / "bundle")


def test_a_history_with_sha256_ids_is_read(tmp_path: Path) -> None:
    repos.write(tmp_path / "r", FILES)
    repos.git(tmp_path / "r", "init", "-q", "--object-format=sha256")
    repos.git(tmp_path / "r", "add", "-A", "-f", ".")
    repos.git(tmp_path / "r", "commit", "-q", "-m", "one")
    commit = repos.git(tmp_path / "r", "rev-parse", "HEAD")
    write_bundle(str(tmp_path / "r"), commit, tmp_path / "bundle")
    objects = Objects(tmp_path / "bundle")
    assert objects.roots(commit) == [commit] and objects.files(commit) == FILES
    objects.close()


def test_failures_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    repos.git(tmp_path / "empty", "init", "-q")
    with pytest.raises(PackageError, match=r"no commit 'HEAD'; commit something first"):
        read_repository(str(tmp_path / "empty"), "")
    repos.repository(tmp_path / "r", FILES)
    with pytest.raises(PackageError, match=r"no commit '0000'; give all of its digits"):
        read_repository(str(tmp_path / "r"), "0000")
    with pytest.raises(PackageError, match=r"no commit '--output=x'|is not a commit"):
        read_repository(str(tmp_path / "r"), "--output=x")
    with pytest.raises(PackageError, match=r"git clone failed.*check the address and the network"):
        read_repository(f"file://{tmp_path}/nothing", "")
    with pytest.raises(PackageError, match=r"holds no files"):
        read_folder(tmp_path / "empty")


def test_a_folder_without_its_rubbish(tmp_path: Path) -> None:
    rubbish = {"__pycache__/a.pyc": b"x", "node_modules/b.js": b"x", "my env/pyvenv.cfg": b"", "my env/lib/c.py": b"x"}
    repos.write(tmp_path, {**FILES, **rubbish, "big.txt": b"x" * (600 << 10)})
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    assert dict(read_folder(tmp_path).files) == FILES


def test_a_package_called_build_is_read_and_a_build_is_not(tmp_path: Path) -> None:
    own = dict.fromkeys(("src/build/__init__.py", "src/build/a.json", "src/env/__init__.py", "src/env/b/c.py"), b"")
    made = dict.fromkeys(("build/lib/build/__init__.py", "dist/a.txt", "env/d.py", "src/build/__pycache__/e.py"), b"")
    repos.write(tmp_path, {**own, **made})
    assert dict(read_folder(tmp_path).files) == own
