"""Real runs of the real command line, for the end-to-end and chaos tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from waiting import ended, run_to_end, wait_until

from woodshed.record.cache import cache_directory

# A shell starts what it puts in the background with SIGINT ignored, and every child of ours would inherit that; some
# of what follows presses Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "recipes" / "smoke.toml"
STEPS, GROUPS_PER_STEP, GROUP_SIZE = 4, 2, 4


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "woodshed.cli", *map(str, arguments)]


def own_cache(folder: Path) -> Path:
    """Make ``folder`` a cache that is empty but for what takes long and is the same in all: compiled kernels, and the
    index of the host's programs if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    common = cache_directory()
    if common == folder:
        return folder
    (common / "native").mkdir(exist_ok=True)
    (folder / "ngrams").mkdir(exist_ok=True)
    for kept in (common / "native", *(common / "ngrams").glob("host-*")):
        with suppress(FileExistsError):
            (folder / kept.relative_to(common)).symlink_to(kept)
    return folder


def environment(scratch: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Temporary files and cache of a run under ``scratch``; a wide terminal without colours."""
    folders = {"TMPDIR": scratch / "tmp", "WOODSHED_CACHE": own_cache(scratch / "cache")}
    folders["TMPDIR"].mkdir(parents=True, exist_ok=True)
    return {**os.environ, **{k: str(v) for k, v in folders.items()}, "COLUMNS": "160", "NO_COLOR": "1", **(extra or {})}


def woodshed(
    scratch: Path, *arguments: str | Path, extra: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return run_to_end([*prefix, *command(*arguments)], cwd=scratch, env=environment(scratch, extra))


def begin(scratch: Path, *arguments: str | Path, output: Path) -> subprocess.Popen[bytes]:
    """A command in the background; what it prints is appended to ``output``."""
    with output.open("ab") as file:
        return subprocess.Popen(
            command(*arguments),
            cwd=scratch,
            env=environment(scratch),
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
        )


@dataclass(frozen=True)
class SmokeRun:
    """A finished smoke run. ``before_rl`` is a copy of its directory from when every stage before RL was finished."""

    scratch: Path
    root: Path
    before_rl: Path
    arguments: tuple[str, ...]
    interrupted: tuple[int, str]
    finished: subprocess.CompletedProcess[str]

    def copy_before_rl(self, root: Path) -> None:
        """Make ``root`` a run of which only RL and its evaluation are left to do, without the baselines."""
        shutil.copytree(self.before_rl, root)
        recipe = root / "recipe.toml"
        text = recipe.read_text()
        assert text.count("\nbaselines = true\n") == 1
        recipe.write_text(text.replace("\nbaselines = true\n", "\nbaselines = false\n"))


def make_smoke_run(scratch: Path) -> SmokeRun:
    """Run the recipe, interrupt it as with Ctrl-C when RL begins, copy the directory, give the same command again."""
    root, copy, output = scratch / "run", scratch / "before-rl", scratch / "output"
    arguments = ("run", str(SMOKE), "--out", str(root))
    process = begin(scratch, *arguments, output=output)
    try:
        wait_until(lambda: (root / "stages" / "before.json").exists(), "the stages before RL", process)
        process.send_signal(signal.SIGINT)
        code = ended(process)
    finally:
        process.kill()
        process.wait()
    shutil.copytree(root, copy)
    interrupted = (code, output.read_text())
    return SmokeRun(scratch, root, copy, arguments, interrupted, woodshed(scratch, *arguments))
