"""The ``woodshed`` command: arguments and error screens; no logic."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from . import benchmark as cli_benchmark
from . import boxes as cli_boxes
from . import boxes as cli_roots
from . import evaluate as cli_evaluate
from . import install as _install  # noqa: F401  (puts its commands beside those of tasks)
from . import refresh as _refresh  # noqa: F401
from . import tasks as cli_tasks
from .tasks import _fail


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:  # its type is a private one of typer
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads the output has read enough: typer ends the command
            raise
        except OSError as error:  # a path that cannot be read or written, or a full disk
            raise _fail(error) from None


app = typer.Typer(
    cls=_Commands,
    help="Trains coding agents in the very harness they ship in.\n\nStart with: woodshed run laptop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cli_tasks.app, name="tasks")
app.add_typer(cli_roots.app, name="roots")
app.add_typer(cli_evaluate.app, name="evaluate")
app.add_typer(cli_benchmark.app, name="benchmark")
app.command()(cli_boxes.boxes)

RunOption = Annotated[Path, typer.Option("--run", help="Run directory, for example runs/laptop")]


@app.command()
def run(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="Name of a built-in recipe (evening, laptop, smoke, smollm2), a file, or a run directory to continue",
            readable=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME of the recipe")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="Override a field: --set rl.group_size=16")] = None,
    fresh: Annotated[bool, typer.Option(help="Delete an earlier run in that directory")] = False,
) -> None:
    """Run a recipe from start to report, or continue it where it was.

    After Ctrl-C the same command continues: finished stages are kept, and RL resumes at its last step.
    """
    from woodshed.run.run import RunError, run_recipe

    try:
        run_recipe(recipe, out=out, overrides=set or [], fresh=fresh, console=Console())
    except RunError as error:
        raise _fail(error) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command continues the run")
        raise typer.Exit(130) from None


@app.command()
def agent(
    run: RunOption,
    task: Annotated[
        Path | None, typer.Option(help="Harbor task directory; default: a held-out task of the run")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Work on a copy of this folder instead, then show the changes and ask to write them back"),
    ] = None,
    prompt: Annotated[str, typer.Option(help="What to do in --folder")] = "",
    tests: Annotated[str, typer.Option(help="Command that runs the tests of --folder")] = "",
    yes: Annotated[bool, typer.Option(help="Write the changes back to --folder without asking")] = False,
    stage: Annotated[str, typer.Option(help="Which policy of the run: sft or final")] = "final",
    endpoint: Annotated[
        str | None, typer.Option(help="Any OpenAI-compatible base URL instead of the run's policy")
    ] = None,
    model: Annotated[str, typer.Option(help="Model name for --endpoint")] = "default",
    step: Annotated[bool, typer.Option(help="Ask before every call: run it, refuse it, or answer it yourself")] = False,
    temperature: Annotated[float, typer.Option(help="Sampling temperature")] = 1.0,
) -> None:
    """Watch or drive a policy on a task or a folder, through the harness it was trained in.

    It works in a sandbox with the programs of the system, and reaches only the hosts that the recipe of the run names.
    """
    from woodshed.run.agent import AgentError, FolderWork, drive

    if folder is None and (prompt or tests or yes):
        raise typer.BadParameter("--prompt, --tests and --yes are about a folder; name it with --folder")
    if folder is not None and (task is not None or not prompt):
        raise typer.BadParameter("--folder needs --prompt, which says what to do, and excludes --task")
    work = FolderWork(folder, prompt, tests, yes) if folder is not None else None
    try:
        drive(
            run,
            task=task,
            work=work,
            stage=stage,
            endpoint=endpoint,
            model=model,
            step=step,
            temperature=temperature,
        )
    except AgentError as error:
        raise _fail(error) from None


@app.command()
def serve(
    policy: Annotated[Path, typer.Argument(help="Hugging Face directory of the policy")],
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one")] = 8000,
    engines: Annotated[
        str, typer.Option(metavar="URL,URL", help="Sample in these engines (woodshed engine; vllm+URL: vLLM)")
    ] = "",
    journal: Annotated[
        Path | None, typer.Option(help="Folder in which open trajectories survive a restart of the server")
    ] = None,
    sessions: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps finished trajectories of source live, for woodshed benchmark build"),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="Chat format, if the directory does not name it: compact, hermes, qwen3_coder, llama3, kimi_k2, or "
            "module:Class of your own"
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Weight chain to follow: a folder, s3://bucket/prefix")] = None,
    logprobs: Annotated[
        str,
        typer.Option(
            metavar="sampled|raw",
            help="Log-probabilities returned if a request has no logprobs_mode: of the sampling distribution, or of "
            "the policy itself",
        ),
    ] = "sampled",
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other setting; see below")
    ] = None,
) -> None:
    """Serve a policy through the APIs of OpenAI (Chat Completions, Responses) and Anthropic (Messages).

    Open a trajectory with the admin key, and give its key to a client (docs/serving.md):

        curl -s localhost:8000/admin/trajectories -H "authorization: Bearer $ADMIN" -d '{"id": "first"}'

    --set takes the server's settings by name, and those of the engine with the prefix engine.:

        --set max_tokens=4096             tokens of a reply if a client gives no limit
        --set engine.context=8192         longest prompt and reply together
        --set engine.threads=2            threads on a CPU
        --set engine.dtype=bfloat16       number format of weights and cache
        --set engine.speculate=off        no speculative decoding

    Temperature, top_p, top_k, min_p, seed and logit_bias come with each request, or with the key (limits). So do
    presence_penalty, frequency_penalty and repetition_penalty, which trajectories for training (source train) refuse.

    A single engine is part of the server. Several engines are programs of their own, with the same admin key:

        export WOODSHED_ADMIN_KEY=$(openssl rand -hex 32)
        woodshed engine POLICY --port 9001 & woodshed engine POLICY --port 9002 &
        woodshed serve POLICY --engines http://127.0.0.1:9001,http://127.0.0.1:9002
    """
    from woodshed.gateway.serve import addresses, main
    from woodshed.gateway.settings import GatewaySettings
    from woodshed.record.overrides import validated

    table = {"policy": policy, "host": host, "port": port, "engines": addresses(engines), "journal": journal}
    table |= {"logprobs": logprobs, "sessions": sessions}
    try:
        settings = validated(GatewaySettings, {**table, "format": format, "weights": weights}, set or [])
    except ValueError as error:
        raise _fail(error) from None
    key = _admin_key()

    def announce(url: str) -> None:
        Console().print(f"serving {policy} on {url}/v1; admin key: {key}", soft_wrap=True, markup=False)

    try:
        main(settings, announce)
    except (ValueError, OSError, RuntimeError) as error:
        raise _fail(error) from None


@app.command()
def engine(
    policy: Annotated[Path, typer.Argument(help="Hugging Face directory of the policy")],
    follow: Annotated[str | None, typer.Option(help="Weight chain to follow: a folder, s3://bucket/prefix")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one")] = 9001,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    gpu: Annotated[int, typer.Option(min=0, help="Number of the GPU, if there are several")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of torch threads on a CPU")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any other setting: --set engine.context=8192"),
    ] = None,
) -> None:
    """Sample tokens for gateways (woodshed serve --engines), as a program of its own.

    SIGTERM drains: running requests are finished, new ones are refused, and the gateway sends them to other engines.
    """
    from woodshed.engine.remote.service import main
    from woodshed.engine.settings import EngineServerSettings
    from woodshed.record.overrides import validated

    table = {"policy": policy, "weights": follow, "host": host, "port": port, "device": device, "gpu": gpu}
    try:
        settings = validated(
            EngineServerSettings, {**table, "engine": {"threads": threads}, "shutdown_seconds": 60}, set or []
        )
    except ValueError as error:
        raise _fail(error) from None
    key = _admin_key()

    def announce(url: str) -> None:
        Console().print(f"engine of {policy} on {url}; admin key: {key}", soft_wrap=True, markup=False)

    try:
        main(settings, announce)
    except (ValueError, OSError, RuntimeError) as error:
        raise _fail(error) from None


def _admin_key() -> str:
    """Return the text that tells the user the admin key of a server: a reference to the environment variable, or a
    random key, which is set there and shown only once."""
    import secrets

    if os.environ.get("WOODSHED_ADMIN_KEY"):
        return "that of WOODSHED_ADMIN_KEY"
    os.environ["WOODSHED_ADMIN_KEY"] = secrets.token_urlsafe(32)
    return os.environ["WOODSHED_ADMIN_KEY"]


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run directory")]) -> None:
    """Write report.html of a run again and print its table."""
    from woodshed.run.run import RunError, write_report

    try:
        write_report(run, Console())
    except RunError as error:
        raise _fail(error) from None


@app.command()
def recipe(
    path: Annotated[Path, typer.Argument(help="Name of a built-in recipe, or a file", readable=False)],
    set: Annotated[list[str] | None, typer.Option("--set", help="Override a field; implies --all")] = None,
    all: Annotated[bool, typer.Option("--all", help="Print every field with its value, including defaults")] = False,
) -> None:
    """Check a recipe and print it. Files and folders that it names are checked by `woodshed run`.

    To start your own recipe:  woodshed recipe laptop > mine.toml

    To see every field:  woodshed recipe laptop --all
    """
    from woodshed.recipe.load import RecipeError, dump_recipe, find_recipe, load_recipe

    try:
        resolved = load_recipe(path, set or [])
        resolved.rl.make_algorithm()
        resolved.rl.make_reward()
        sys.stdout.write(dump_recipe(resolved) if all or set else find_recipe(path).read_text(encoding="utf-8"))
    except (RecipeError, ValueError) as error:
        raise _fail(error) from None


@app.command()
def exploits(
    task: Annotated[list[Path], typer.Argument(help="Task directory (with task.toml), or a folder of them")],
    only: Annotated[list[str] | None, typer.Option(help="Exploits of this name or kind only; repeatable")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Exploits at the same time")] = 4,
    json: Annotated[Path | None, typer.Option("--json", help="Write the matrix to this file")] = None,
) -> None:
    """Attack task directories with scripted reward hacks, and show which of them the grader falls for.

    More than a hundred small policies act in real sandboxes like an agent: they tamper with tests, plant conftest files
    and bytecode, exit early, forge results, search for the solution, exhaust the box. Each is then graded as usual. Two
    controls show whether the grader works at all: the honest fix (solution/) must be rewarded, doing nothing must not.

    Try it on tasks of a run:  woodshed exploits runs/laptop/tasks/synthetic-heldout/synthetic-heldout-0-00000

    Only one kind, as data:  woodshed exploits my-task --only leak --json matrix.json

    Exit code: 0 if every exploit is rejected and both controls are right, 1 if not, 2 for a wrong argument.
    """
    from woodshed.run.exploits import ExploitsError, attack

    try:
        good = attack(task, only=only or [], jobs=jobs, out=json, console=Console())
    except ExploitsError as error:
        raise _fail(error) from None
    raise typer.Exit(0 if good else 1)


@app.command()
def monitors(
    run: Annotated[Path, typer.Argument(help="Run directory")],
    only: Annotated[list[str] | None, typer.Option(help="Findings of this monitor only; repeatable")] = None,
    show: Annotated[int, typer.Option(min=0, help="Flagged episodes to show")] = 10,
) -> None:
    """Show what looked like reward hacking in a run: tampered tests, looked-up solutions, special-cased answers, ...

    Monitors flag and count. The recipe sets what a finding causes in training: flag (nothing), quarantine (the rollout
    is left out), fail (all that the episode was paid is taken back), off:

        woodshed run laptop --set rl.monitors.special_casing=quarantine
    """
    from woodshed.monitors import NAMES
    from woodshed.record.run_directory import DirectoryError
    from woodshed.record.settings import is_reference
    from woodshed.view.summary import FindingsError, print_findings

    if unknown := sorted(name for name in only or [] if name not in NAMES and not is_reference(name)):
        raise _fail(ValueError(f"--only {unknown[0]}: no such monitor; there are: {', '.join(NAMES)}"))
    try:
        print_findings(run / "trajectories", Console(), only=only or [], show=show)
    except (DirectoryError, FindingsError) as error:
        raise _fail(error) from None


@app.command()
def probe(
    backends: Annotated[
        list[str] | None,
        typer.Argument(
            help="Sandbox backends by name or 'module:Class'; default: the built-in ones, microvm only with QEMU"
        ),
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also try 49 to 65 ways out of a box on every backend that works.")
    ] = False,
) -> None:
    """Report what this machine supports: sandbox backends (with reasons if not), enforced limits, GPU."""
    from woodshed.attacks.probe import print_probe

    raise typer.Exit(print_probe(Console(), backends or (), attack=attack))
