"""``woodshed evaluate``: arguments and screens; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from woodshed.view.bar import Bar

from .options import BackendOption, JsonOption
from .tasks import _cores, _fail, _print, _print_json

RUN = "run"
SWEEP = (0.3, 0.6, 1.0)


class _WithoutRun(TyperGroup):
    """``woodshed evaluate POLICY ...`` means ``woodshed evaluate run POLICY ...``."""

    default_command = RUN

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # its type is a private one of typer
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_WithoutRun,
    help="Evaluate policies side by side on suites of tasks: woodshed evaluate POLICY... --suite SUITE --out DIR "
    "(`woodshed evaluate run --help`).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(RUN)
def run(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Run directory (its final policy; RUN:sft for the policy of a stage), checkpoint folder, or URL#MODEL "
            "of an OpenAI-compatible server; NAME=POLICY names it",
        ),
    ],
    suite: Annotated[
        list[str],
        typer.Option(
            help="Folder of tasks, run directory (its held-out tasks), quixbugs:PATH, exercism:PATH, humaneval:PATH, "
            "refactorbench:PATH, cruxeval:PATH, cruxeval-input:PATH, cheats, interaction, my_module:my_suite; "
            "repeatable"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of this evaluation; the same command continues it")],
    samples: Annotated[int, typer.Option("--samples", "-k", min=1, help="Episodes per task and policy")] = 1,
    temperature: Annotated[
        str, typer.Option(help="Sampling temperature; several (0.3,0.6,1.0) or 'sweep' with --development")
    ] = "1.0",
    development: Annotated[
        str,
        typer.Option(help="Tasks on which each policy's temperature is chosen: a share of the tasks (0.2) or a suite"),
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of tasks per suite, chosen by name; 0: all")] = 0,
    split: Annotated[str, typer.Option(help="Split of the tasks in folders: heldout, train, ... or all")] = "heldout",
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Recipe whose harness and boxes all policies get, or 'program:COMMAND'; NAME=AGENT for one policy only"
        ),
    ] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="Override a field of that recipe")] = None,
    open_: Annotated[
        list[str] | None,
        typer.Option(
            "--open",
            help="Host that boxes may reach (HOST, *.DOMAIN, HOST:PORT) in a second arm of every policy, which is "
            "compared with the first; boxes of the first arm have no network; repeatable",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the policy to compare with; if given several times, the best of them; default: the first. "
            "Policies named NAME@0, NAME@1, ... are seeds: each is compared within its seed, and all of them pooled"
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Episodes at the same time; default: two per core")] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option(min=1, help="Start no further episode once this many tokens are used")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Start no further episode after this many minutes")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="NAME=CONTEXT/SAMPLED, in dollars per million tokens; repeatable")
    ] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with the key of the servers at URLs")] = "",
    across_harnesses: Annotated[
        bool, typer.Option("--across-harnesses", help="Also compare policies in different harnesses")
    ] = False,
    axis: Annotated[
        list[str] | None,
        typer.Option(help="my_module:my_function, a reward term to measure in addition to correctness; repeatable"),
    ] = None,
    judge: Annotated[
        str, typer.Option(help="URL#MODEL that reads every episode and judges change, message and intent")
    ] = "",
    judge_key_env: Annotated[str, typer.Option(help="Environment variable with the key of the judge's server")] = "",
    seed: Annotated[int, typer.Option(help="Seed of sampling and of the resampling of tasks")] = 0,
    catalogue: Annotated[str, typer.Option(help="Other catalogue, for the test runner of suites that are built")] = "",
    json_: JsonOption = False,
) -> None:
    """Run policies on suites: pass@1 with intervals, pass@k, paired differences, cost, cheats, quality, interaction.

    Every finished episode is stored once: if interrupted or killed, the same command continues. Writes results.json and
    results.html into --out.

        woodshed evaluate runs/laptop:sft runs/laptop --suite runs/laptop -k 8 --out compared

        woodshed evaluate http://127.0.0.1:8000/v1#policy --suite quixbugs:QuixBugs --out measured
    """
    from woodshed.run.evaluation.plan import Wishes
    from woodshed.run.evaluation.policies import EvaluationError
    from woodshed.run.evaluation.run import evaluate_policies
    from woodshed.view.comparison import print_results, write_page

    wishes = Wishes(
        out=out,
        policies=tuple(policies),
        suites=tuple(suite),
        samples=samples,
        temperatures=_temperatures(temperature),
        development=development,
        limit=limit,
        split=split,
        agents=tuple(agent or ()),
        overrides=tuple(set or ()),
        baselines=tuple(baseline or ()),
        jobs=jobs or 2 * _cores(),
        seed=seed,
        key_env=key_env,
        prices=tuple(price or ()),
        max_tokens=max_tokens_total,
        max_minutes=max_minutes,
        across_harnesses=across_harnesses,
        catalogue=catalogue,
        axes=tuple(axis or ()),
        judge=judge,
        judge_key_env=judge_key_env,
        opened=tuple(open_ or ()),
    )
    try:
        with Bar(Console(stderr=True)) as progress:
            results = evaluate_policies(wishes, progress)
        write_page(results, out / "results.html")
    except EvaluationError as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command goes on where it was")
        raise typer.Exit(130) from None
    if json_:
        _print_json(results)
    else:
        print_results(results, Console())
        _print(f"in {out / 'results.html'} and {out / 'results.json'}")
    raise typer.Exit(0 if results["complete"] else 1)


@app.command()
def regrade(
    folder: Annotated[Path, typer.Argument(help="Folder of an evaluation (--out)")],
    jobs: Annotated[int | None, typer.Option(min=1, help="Boxes at the same time; default: one per core")] = None,
    backend: BackendOption = "namespace",
    json_: JsonOption = False,
) -> None:
    """Grade stored submissions again without running agents, after a task or a grader was corrected.

    Tasks are read from their recorded paths. First outcomes are kept; results count the newest ones. Exit code 1 if an
    episode could not be graded again.
    """
    import json

    from woodshed.run.evaluation.policies import EvaluationError
    from woodshed.run.evaluation.regrade import regrade as grade_again
    from woodshed.view.comparison import print_results, write_page

    try:
        with Bar(Console(stderr=True)) as progress:
            found = grade_again(folder, progress, jobs=jobs or _cores(), backend=backend)
        results = json.loads((folder / "results.json").read_text("utf-8"))
        write_page(results, folder / "results.html")
    except EvaluationError as error:
        raise _fail(error) from None
    if json_:
        _print_json({"graded": found.graded, "changed": list(found.changed), "left_out": found.left_out})
    else:
        print_results(results, Console())
        for id in found.changed:
            _print(f"changed: {id}")
        for id, why in found.left_out.items():
            _print(f"left out: {id}: {why}")
        _print(f"{found.graded} episodes graded again, {len(found.changed)} outcomes changed")
    raise typer.Exit(1 if found.left_out else 0)


@app.command()
def plan(
    difference: Annotated[float, typer.Option(help="Difference in pass@1 to detect")] = 0.05,
    power: Annotated[float, typer.Option(help="Probability of detecting it")] = 0.8,
    rate: Annotated[float, typer.Option(help="Assumed pass@1 of the baseline")] = 0.5,
    task_sd: Annotated[
        float, typer.Option(help="Assumed standard deviation of pass rates over tasks, of one policy")
    ] = 0.35,
    difference_sd: Annotated[
        float, typer.Option(help="Assumed standard deviation over tasks of the true difference")
    ] = 0.15,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Take these from an earlier evaluation (its folder) instead")
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=0, help="Number of available tasks; also prints which difference these can show")
    ] = 0,
    json_: JsonOption = False,
) -> None:
    """Print how many tasks and samples an evaluation needs to detect a difference, and how large noise alone is.

    woodshed evaluate plan --difference 0.05 --power 0.8 --rate 0.4

    woodshed evaluate plan --from compared --difference 0.03
    """
    from rich.table import Table

    from woodshed.run.evaluation.planning import make_plan, spread_from
    from woodshed.run.evaluation.policies import EvaluationError

    try:
        found = make_plan(
            spread_from(from_, rate=rate, task_sd=task_sd, difference=difference, difference_sd=difference_sd),
            difference=difference,
            power=power,
            tasks=tasks,
        )
    except (EvaluationError, ValueError) as error:
        raise _fail(error) from None
    if json_:
        _print_json(found.as_json())
        return
    names = ["samples", "tasks needed", "episodes", "noise floor", *(["shows at least"] if tasks else [])]
    table = Table(*names)
    for row in found.rows:
        shown = [str(row.samples), str(row.tasks), str(row.episodes), f"{row.noise_floor:.4f}"]
        table.add_row(*shown, *([f"{row.detectable:.4f}"] if row.detectable is not None else []))
    Console().print(table)
    _print(found.text())


def _temperatures(text: str) -> tuple[float, ...]:
    if text == "sweep":
        return SWEEP
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _fail(ValueError(f"--temperature {text}: write a number, several as 0.3,0.6,1.0, or sweep")) from None
