"""The documentation names only files, links, modules, recipe fields and commands that exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import ValidationError

from woodshed.cli.main import app
from woodshed.recipe.load import builtin_names, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.overrides import fields_at

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "woodshed"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
)
IN_A_TASK = {"tests/test.sh", "tests/start.sh"}
"""Files of a Harbor task directory."""
FOLDERS = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"))
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pages
def test_paths_exist(page: Path) -> None:
    """Paths from the root (``woodshed/rl/ledger.py``), and modules named from the package (``rl/ledger.py``)."""
    text = page.read_text("utf-8")
    from_root = re.findall(
        r"(?<![\w/.@-])((?:woodshed|docs|tests|benchmarks|recipes|examples|scripts)/[\w./*-]*(?:/|\.[a-z]+))(?![\w/])",
        text,
    )
    from_package = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/]+\.(?:py|js|cpp))\b", text)
    missing = [path for path in set(from_root) - IN_A_TASK if not list(ROOT.glob(path.rstrip("/")))]
    missing += [path for path in from_package if not (PACKAGE / path).exists()]
    assert not missing


def test_folders_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = re.findall(rf"`((?:{FOLDERS})/[\w/]*)`", text)
    assert len(named) > 20
    assert [path for path in named if not (PACKAGE / path).exists()] == []


@pages
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in headings(linked), f"{target}: no such heading"


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_modules_and_names_exist(page: Path) -> None:
    for name in re.findall(r"(?<![\w./-])woodshed(?:\.[A-Za-z_]\w*)+(?::\w+)?", page.read_text("utf-8")):
        if name != "woodshed.json":
            assert exists(name), name


def exists(name: str) -> bool:
    """True if ``woodshed.module``, ``woodshed.module.name`` or ``woodshed.module:name`` exists; does not import it."""
    module, _, attribute = name.partition(":")
    file = module_file(module)
    if file is None and not attribute:
        module, _, attribute = module.rpartition(".")
        file = module_file(module)
    return file is not None and (not attribute or attribute in defined_names(file))


def module_file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def defined_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pages
def test_python_parses(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        ast.parse(block, str(page))


@pages
def test_toml_parses(page: Path) -> None:
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        tomllib.loads(block)


@pages
def test_recipe_fields_exist(page: Path) -> None:
    tables = "|".join(name for name, field in Recipe.model_fields.items() if fields_at(Recipe, (name,)))
    for name in re.findall(rf"`((?:{tables})(?:\.[a-z_]+)+)(?: ?=[^`]*)?`", page.read_text("utf-8")):
        *table, field = name.split(".")
        if field not in ("json", "toml", "html"):
            assert field in fields_at(Recipe, table), f"{name}: no such field"


@pages
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    shell = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in shell for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"(?<!`)`(woodshed [^`]+)`(?!`)", text)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and Path(words[0]).name == "woodshed" and len(words) > 1:
            check_command(words[1:], line)


def check_command(words: list[str], line: str) -> None:
    command: Any = typer.main.get_command(app)
    words = [word for word in words if word != "..."]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands and hasattr(command, "default_command"):
            words = [command.default_command, *words]
        assert words[0] in command.commands, f"{line}: no command {words[0]}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]
    unknown = set(options) - known - {"--help"}
    assert not unknown, f"{line}: no option {', '.join(sorted(unknown))}"


BASES = [tomllib.loads((ROOT / "recipes" / f"{name}.toml").read_text("utf-8")) for name in ("laptop", "smollm2")]


@pages
def test_parts_of_recipes_are_valid(page: Path) -> None:
    """Each block fits into one of the built-in recipes, apart from code of the reader's own."""
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        part = tomllib.loads(block)
        if "metadata" not in part:  # of a task
            problems = [problem_of(merged(base, part)) for base in BASES]
            assert "" in problems, f"{block}{problems}"


def merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    both = {key: merged(base[key], part[key]) for key in base if isinstance(base[key], dict) and key in part}
    return {**base, **part, **both}


def problem_of(recipe: dict[str, Any]) -> str:
    """Return why the recipe is refused; '' if it is not, or only because it names a module that is not here."""
    try:
        Recipe.model_validate(recipe)
    except ValidationError as error:
        said = [f"{e['loc']}: {e['msg']}" for e in error.errors() if "No module named 'my_" not in e["msg"]]
        return "; ".join(said)
    return ""


@pages
def test_runs_of_built_in_recipes_are_valid(page: Path) -> None:
    text = page.read_text("utf-8").replace("\\\n", " ")
    for words in map(shlex.split, re.findall(r"(?<=woodshed run )[a-z0-9]+ --[^`#\n]*", text)):
        if words[0] in builtin_names():
            load_recipe(words[0], [word for option, word in pairwise(words) if option == "--set"])


def test_the_help_of_run_names_every_built_in_recipe() -> None:
    argument = typer.main.get_command(app).commands["run"].params[0]  # type: ignore[attr-defined]
    assert ", ".join(builtin_names()) in argument.help


def test_every_result_is_described_and_in_the_tables() -> None:
    described, mark, tables = (ROOT / "docs" / "measured.md").read_text("utf-8").partition("<!-- below this line")
    assert mark
    for path in RESULTS:
        assert f"\n| `{path.stem}` | " in described, f"{path.stem}: say in docs/measured.md what it compares"
        section = tables.partition(f"\n## {path.stem}\n")[2].partition("\n## ")[0]
        figures = re.findall(r"^\| ([\w.]+) \| (.*) \|$", section, re.MULTILINE)[1:]
        result = json.loads(path.read_text("utf-8"))["figures"]
        shown = {
            name: "not measured" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v)
            for name, v in result.items()
        }
        assert dict(figures) == shown, f"{path.stem}: run benchmarks/table.py"


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_how_it_was_made_and_on_what_but_not_where(result: Path) -> None:
    found = json.loads(result.read_text("utf-8"))
    assert all(found[key] for key in ("command", "commit", "date", "hardware", "figures"))
    places = [word for word in shlex.split(found["command"]) if word.rpartition("=")[2].startswith("/")]
    assert places == []
