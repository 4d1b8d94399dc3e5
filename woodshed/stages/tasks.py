"""The tasks of a run: its task directories, the check of training data against held-out tasks, and the held-out key.

Graders draw held-out test inputs with a secret key per run, which is stored in the run directory and survives a resume.
The procedure is public, so without a secret a policy that trains long enough could learn the answers. Only the grading
processes on this host read the key; records hold its digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from woodshed.grading.settings import GradingSettings
from woodshed.policy.tokenizer import Tokenizer
from woodshed.recipe.recipe import Recipe
from woodshed.record.history import in_use
from woodshed.record.run_directory import DirectoryError, RunDirectory, key_file
from woodshed.record.task import Task, TaskError
from woodshed.tasks.find import task_folders
from woodshed.tasks.validate.contamination import contamination, held_out_repositories

from .examples import load_examples
from .failures import StageFailed


def task_folder(run: RunDirectory, family: str, split: str) -> Path:
    return run.tasks(f"{family}-{split}")


def built_tasks(folder: str) -> tuple[list[Task], str]:
    """Return the tasks of a folder made by ``woodshed tasks build``, sorted by name, and a note on those left out
    because ``woodshed tasks refresh`` took them out of use ('' if none). Raises TaskError if a task is damaged."""
    found, left = in_use(Task.load(path.absolute()) for path in task_folders([Path(folder)]))
    said = ", ".join(f"{count} {status}" for status, count in sorted(left.items()))
    return sorted(found, key=lambda task: task.name), f"{said} left out" if said else ""


def split_of(task: Task, recipe: Recipe) -> str:
    """Return the split of a run that a task of a real package is in. Where such tasks are the main ones and
    temperatures are compared, some training tasks are for development (``is_for_development``)."""
    develop = recipe.tasks.main == "packages" and len(recipe.evaluate.temperatures) > 1
    return "dev" if develop and task.info.split == "train" and is_for_development(task) else task.info.split


def is_for_development(task: Task) -> bool:
    """Return whether a training task of a real package is used for development (choice of settings) instead of
    training: an eighth of them, chosen by the function that the task is about, so that all tasks of a function are on
    the same side."""
    key = task.info.key or task.name
    return hashlib.sha256(f"dev:{key}".encode()).digest()[0] < 32


def lacking_packages(count: Mapping[str, int], recipe: Recipe) -> str:
    """Return in words what is too little if real packages are the main tasks of a run; '' if there are enough.
    ``count``: their number by split."""
    if recipe.tasks.main != "packages":
        return ""
    needed = recipe.rl.steps * recipe.rl.groups_per_step
    train, dev = count.get("train", 0), count.get("dev", 0)
    if train < needed:
        aside = f" besides {dev} for development (evaluate.temperatures)" if dev else ""
        return (
            f"has {train} training tasks{aside}, and rl.steps x rl.groups_per_step needs {needed} (a prompt is "
            "never trained twice); make more tasks, or lower rl.steps"
        )
    if len(recipe.evaluate.temperatures) > 1 and not dev:
        return "has no development tasks, and evaluate.temperatures are compared on some; give one temperature"
    return ""


def load_split(run: RunDirectory, family: str, split: str) -> list[Task]:
    """Return all tasks of a split, sorted by folder name. Raises TaskError if there are none."""
    folder = task_folder(run, family, split)
    tasks = [Task.load(path.parent) for path in sorted(folder.glob("*/task.toml"))]
    if not tasks:
        raise TaskError(f"{folder}: no tasks; the stage that makes them has not run")
    return tasks


def check_label(found: Iterable[str], recipe: Recipe) -> None:
    """Raise StageFailed if ``rl.algorithm`` reads a label that no training task has. ``found``: names of their labels.

    Called when the tasks are made, long before RL would fall back to a baseline that the recipe does not name."""
    wanted, names = recipe.rl.make_algorithm().label, sorted(set(found))
    if wanted and wanted not in names:
        raise StageFailed(
            f"rl.algorithm {recipe.rl.algorithm!r} needs the label {wanted!r} (rl.algorithm_options), and no training "
            f"task has it: theirs are {', '.join(names)}; choose one of these and start over with --fresh"
        )


def check_training_data(run: RunDirectory) -> int:
    """Search the corpus and the demonstrations for code of held-out repositories; return the number of repositories.

    Raises StageFailed, naming repository, function and file, if code of one is found.
    """
    splits = [run.tasks(f"packages-{split}") for split in ("train", "heldout")]
    folders = [path.parent for split in splits for path in split.glob("*/task.toml")]
    repositories = held_out_repositories(Task.load(folder) for folder in sorted(folders))
    if not repositories:
        return 0
    for path, tokenizer in _trained_on(run):
        found = contamination(repositories, (tokenizer.decode(e.tokens.tolist()) for e in load_examples(path)))
        if found:
            first = found[0]
            raise StageFailed(
                f"{path}: example {first.text} holds {first.share:.0%} of {first.function} of {first.repository}, "
                f"which is held out ({len(found)} such functions): hold another package out "
                "(tasks.packages.heldout_packages), or keep it out of the training data"
            )
    return len(repositories)


def _trained_on(run: RunDirectory) -> Iterator[tuple[Path, Tokenizer]]:
    own = run.corpus / "tokenizer.json"
    tokenizer = own if own.exists() else run.policy("pretrain") / "tokenizer.json"
    for path in (run.corpus / "examples.npz", run.demonstrations / "examples.npz"):
        if path.exists():
            yield path, Tokenizer.load(tokenizer)


VARIABLE = "WOODSHED_HELD_OUT_KEY"
"""Environment variable with an explicit key; ``grading.held_out_key`` comes first."""

_FILE = "held_out.key"


def settle_key(settings: GradingSettings, folder: Path) -> None:
    """Write the key of a run into its folder, unless it has one: the explicit key if one is set, else a random one.

    Raises DirectoryError if the folder has another key than the explicit one: rewards would change in mid-run.
    """
    stated = _stated(settings)
    kept = with_key(settings, folder).held_out_key
    if stated and stated != kept:
        raise DirectoryError(
            f"{folder / _FILE} holds another key than grading.held_out_key or {VARIABLE} gives: leave the latter out "
            "to go on as before, or delete the file to grade by other inputs from now on"
        )


def with_key(settings: GradingSettings, folder: Path) -> GradingSettings:
    """Return ``settings`` with the key of ``folder``, which gets one if it has none. Raises DirectoryError if the key
    file is empty."""
    path = key_file(folder / _FILE, _stated(settings))
    kept = path.read_text("utf-8").strip()
    if not kept:
        raise DirectoryError(f"{path} is empty: put the key back, or delete it to have another one drawn")
    return settings.model_copy(update={"held_out_key": kept})


def _stated(settings: GradingSettings) -> str:
    return (settings.held_out_key or os.environ.get(VARIABLE, "")).strip()


def key_digest(settings: GradingSettings) -> str:
    """Return the digest of the key for records; it shows whether two evaluations were graded on the same inputs."""
    return hashlib.sha256(settings.held_out_key.encode()).hexdigest()[:12]
