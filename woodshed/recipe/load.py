"""Load recipes from TOML with ``--set`` overrides; errors name file, line, field and the nearest valid name."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from woodshed.record.overrides import apply, fields_at
from woodshed.record.run_directory import RunDirectory
from woodshed.record.toml import to_toml

from .recipe import Recipe

BUILTIN = Path(__file__).parent.parent / "recipes"
"""Folder of the recipes that come with the package."""


class RecipeError(Exception):
    """The recipe cannot be used; the message says where and what to do."""


def builtin_names() -> list[str]:
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))


def find_recipe(given: Path) -> Path:
    """Return the recipe file for ``given``, a path or the name of a built-in recipe. Raises RecipeError."""
    if given.exists() or given.suffix or len(given.parts) != 1:
        return given
    if given.name in builtin_names():
        return BUILTIN / f"{given.name}.toml"
    near = difflib.get_close_matches(given.name, builtin_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise RecipeError(
        f"{given}: no such file, and no built-in recipe; {hint}built in are {', '.join(builtin_names())}; "
        "a recipe of your own is given by its path"
    )


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a file or the built-in recipe of that name, apply ``overrides`` (``rl.group_size=16``), validate everything.

    Raises RecipeError before anything starts.
    """
    path = find_recipe(Path(path))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe{_similar_file(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}; a recipe is a TOML file in UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from None
    try:
        origin = apply(table, overrides)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(path, text, origin, e) for e in error.errors())) from None


def recipe_of(run: RunDirectory) -> Recipe:
    """Return the recipe of a run. Raises RecipeError, also if the folder is not a run directory."""
    if not run.recipe.is_file():
        raise RecipeError(f"{run.root} is not a run directory (it has no recipe.toml)")
    return load_recipe(run.recipe)


def earlier_run(recipe: Recipe) -> RunDirectory | None:
    """Return the run that this recipe goes on from, if ``policy.source`` is a run directory, else None."""
    if recipe.policy.source in ("scratch", "smollm2"):
        return None
    run = RunDirectory(Path(recipe.policy.source).absolute())
    return run if run.recipe.is_file() else None


def first_source(recipe: Recipe) -> str:
    """Return ``policy.source`` of the first run in the chain of runs that this recipe goes on from; of the recipe
    itself if it goes on from none. Raises RecipeError if one of their recipes cannot be read."""
    while (run := earlier_run(recipe)) is not None:
        recipe = load_recipe(run.recipe)
    return recipe.policy.source


def dump_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe as TOML, with every field written out."""
    return to_toml(recipe.model_dump(mode="json", exclude_none=True))


def _explain(path: Path, text: str, origin: dict[tuple[str, ...], str], error: Any) -> str:
    keys = tuple(str(k) for k in error["loc"])
    field = ".".join(keys) or "recipe"
    # The check of a whole table names the field itself.
    inside = (said for at, said in origin.items() if at[: len(keys)] == keys and ".".join(at) in error["msg"])
    where = origin.get(keys) or next(inside, None) or f"{path}{_line(text, keys)}"
    if error["type"] == "extra_forbidden":
        known = fields_at(Recipe, keys[:-1])
        near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
        return f"{where}: {field}: unknown field; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] in ("missing", "value_error") else f" (got {error['input']!r})"
    return f"{where}: {field}: {message}{got}"


def _line(text: str, keys: tuple[str, ...]) -> str:
    """Return ``:LINE`` of the deepest of the nested ``keys`` that is in the file; '' if none is."""
    table: list[str] = []
    best, depth = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            table = [part.strip().strip('"') for part in header[1].split(".")]
            here = tuple(table)
        elif assignment := re.match(r'\s*([A-Za-z0-9_."-]+)\s*=', line):
            here = (*table, *(part.strip('"') for part in assignment[1].split(".")))
        else:
            continue
        if keys[: len(here)] == here and len(here) > depth:
            best, depth = f":{number}", len(here)
    return best


def _similar_file(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else BUILTIN
    names = [str(p) for p in sorted(folder.glob("*.toml"))]
    return f"; there are: {', '.join(names)}" if names else ""
