"""Bad recipes fail before anything starts, naming file, line, field and the nearest valid name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_shipped_recipes_load_and_survive_a_round_trip(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    written = tmp_path / "resolved.toml"
    written.write_text(dump_recipe(recipe))
    assert load_recipe(written) == recipe
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) < 40


def test_a_builtin_recipe_is_found_by_its_name_and_starts_a_users_own(tmp_path: Path) -> None:
    def woodshed(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from woodshed.cli.main import app; app()", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    mine = tmp_path / "mine.toml"
    mine.write_text(woodshed("recipe", "laptop").stdout)
    assert mine.read_text().startswith("#") and load_recipe(mine) == load_recipe("laptop")
    resolved = woodshed("recipe", "mine.toml", "--set", "rl.group_size=3").stdout
    assert "group_size = 3" in resolved and "max_staleness" in resolved
    for wrong in ('rl.algorithm="nosuch:It"', 'rl.rewards={"nosuch:term"=1}'):
        refused = woodshed("recipe", "mine.toml", "--set", wrong)
        assert refused.returncode == 2 and refused.stdout == "" and "nosuch" in refused.stderr
    (tmp_path / "laptop").write_text('name = "a file"\n')
    assert "'a file'" in " ".join(woodshed("recipe", "laptop").stderr.split())  # a file comes before a name
    unknown = woodshed("run", "latop")
    assert unknown.returncode == 2
    assert "did you mean 'laptop'? built in are evening, laptop, smoke, smollm2" in " ".join(unknown.stderr.split())


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            'name = "x"\n[rl]\n',
            ["rl.rewards.effrt=0.1"],
            r"^--set rl\.rewards\.effrt=0\.1: rl: .*did you mean 'effort'",
        ),
        ('name = "x"\n[rl.rewards]\neffrt = 1\n', ["rl.steps=3"], r"x\.toml: rl: .*did you mean 'effort'"),
        *(
            ('name = "x"\n', [f"evaluate.temperatures=[{at}]"], r"evaluate\.temperatures: .* from 0 to 2")
            for at in ("2.5", "-1")
        ),
        *(
            (
                'name = "x"\n',
                [f"{field}={value}"],
                rf"{field}.*: Input should be a finite number",
            )
            for field in ("rl.curriculum.harder", "train.optimizer.lr", "rl.rewards.effort")
            for value in ("nan", "inf")
        ),
        ('name = "x"\n', ["evaluate.temperatures=[nan]"], r"evaluate\.temperatures.*: Input should be a finite number"),
        ('name = "x"\n', ["rl.max_staleness=8"], r"rl: max_token_age is 4 and max_staleness 8"),
        (
            'name = "x"\n\n[rl]\ngroup_sise = 3\n',
            [],
            r"x\.toml:4: rl\.group_sise: unknown field; did you mean 'group_size'",
        ),
        (
            'name = "x"\n[rl.rewards]\neffort = { weigth = 0.2 }\n',
            [],
            r"x\.toml:3: rl\.rewards\.effort\.weigth: unknown field; did you mean 'weight'",
        ),
        ('name = "x"\n[rl]\nsteps = "many"\n', [], r"x\.toml:3: rl\.steps: .*integer.*'many'"),
        (
            'name = "x"\n[rl]\nmode = "sync"\nmax_staleness = 1\n',
            [],
            r"x\.toml:2: rl: mode 'sync' sets max_staleness to 0",
        ),
        ('name = "x"\n', ["rl.group_size=0"], r"--set rl\.group_size=0: rl\.group_size: .*greater than or equal to 1"),
        ('name = "x"\n', ["rl.group_size=1"], "rl: .*mean_baseline compares at least 2 rollouts of a prompt"),
        ('name = "x"\n', ["rl.group_size"], r"write field=value"),
        ('name = "x"\n', ["rl.rewards.mine:short=0.1"], r"put a name with a colon in quotes"),
        ('name = "x"\n[tasks]\nmain = "packages"\n', [], r"there is no \[tasks\.packages\] table"),
        ('name = "x"\n[rl\n', [], "not valid TOML"),
        (
            'name = "x"\n[harness]\nsummary = { trigger_tokens = 90 }\n',
            ["learn.demonstrations.hinted=0.5"],
            r"learn\.demonstrations\.hinted shows conversations of one context",
        ),
        (
            'name = "x"\n[sandbox]\nallow = ["https://index.example"]\n',
            [],
            r"x\.toml:3: sandbox\.allow: .*'https://index.example'",
        ),
        (
            'name = "x"\n[sandbox]\nbackend = "docker"\nallow = ["index.example"]\n',
            [],
            r"sandbox: .*the docker backend gives boxes no network",
        ),
        (
            'name = "x"\n[rl.monitors]\njudge = "flag"\n',
            [],
            r"rl: .*set rl\.judge\.base_url and rl\.judge\.model",
        ),
        ('description = "no name"\n', [], "name: Field required"),
        (
            'name = "x"\n',
            [
                'harness.program.command="x"',
                'rl.algorithm="tree"',
                "rl.forks.count=2",
                "learn.demonstrations.episodes=0",
            ],
            r"rl\.forks\.count is 2: a fork repeats the calls of the built-in agent.*set rl\.forks\.count = 0",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(path, overrides)


def test_a_missing_recipe_lists_what_there_is() -> None:
    with pytest.raises(RecipeError, match=r"no such recipe; there are: .*smoke\.toml"):
        load_recipe(RECIPES[0].parent / "lptop.toml")


def test_overrides_reach_nested_fields() -> None:
    recipe = load_recipe(RECIPES[0].parent / "smoke.toml", ["rl.group_size=6", "name=other", "train.optimizer.lr=1e-5"])
    assert (recipe.rl.group_size, recipe.name, recipe.train.optimizer.lr) == (6, "other", 1e-5)
    named = load_recipe(RECIPES[0].parent / "smoke.toml", ['rl.rewards."mine.terms:short".weight=0.1'])
    assert named.rl.rewards["mine.terms:short"].weight == 0.1


def test_loading_a_recipe_imports_no_torch() -> None:
    code = (
        "import sys, woodshed.cli.main; from woodshed.recipe.load import load_recipe; load_recipe(sys.argv[1]);"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(RECIPES[0])], check=True)
