"""The two roles of an install as agents: our harness on any policy behind an OpenAI-compatible server.

The goal-setter explores the bare repository and writes goals. The builder does not see how they were chosen, starts
from the initial state and writes a recipe. Only the replayed recipe counts, never what a role says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from woodshed.grading.install.changes import SCRATCH, SETUP
from woodshed.grading.install.goal import Goal
from woodshed.grading.install.match import search
from woodshed.harness.endpoint import ChatEndpoint
from woodshed.harness.episode import Episode, Moment, Reaction
from woodshed.harness.loop import run_episode
from woodshed.harness.settings import CommandSettings, HarnessSettings, LimitSettings
from woodshed.sandbox.protocol import BoxError, BoxSpec, Sandbox
from woodshed.tasks.packages.index import PackageError

from .kit import PROPOSED, parse_goals
from .replay import Recipe, Replay
from .space import GOALS, START, Boxes, Ground

CORRECTIONS = 3
"""Number of times that a goal-setter may correct its file."""

_MAX_SCRIPT = 64 << 10

_TOOLS = ("read_file", "write_file", "edit_file", "grep", "glob", "list_dir", "run_command", "todo_write", "finish")
ROLE_HARNESS = HarnessSettings(
    tools=_TOOLS,
    limits=LimitSettings(turns=60, wall_seconds=2400.0),
    command=CommandSettings(timeout=120.0),
)
"""Default settings of the agent of both roles."""

_SETTER = f"""\
Find out how this repository is set up, tested and run: read its documentation and configuration, try its tools.

{{box}} What you install is thrown away.

Then write {GOALS}: a JSON list of exactly {PROPOSED} goals, commands that will work once somebody has set the
repository up properly. Each is an object with
- "command": one shell line, run in the root of the repository, that ends by itself and installs nothing;
- "expect": what its output looks like, in words, for somebody who does not know the repository;
- "pattern": a regular expression (Python) that must be found in that output and in no failed one;
- "exit_codes": list of the exit codes that are right, such as [0];
- "passing_share", only where the command runs {{runner}}: the share of tests that has to pass, such as 0.9.
Cover the test suite, parts of it, imports, command lines, whatever the project offers. Do not make them depend on
times, places or random values. Call finish when the file is complete.
"""

_BUILDER = f"""\
Write a recipe that sets up this repository, so that the commands below work.

{{box}}

Hand in {SETUP}, a shell script that is run once with `sh -e` in the root of a fresh copy of the repository, and, only
if services have to run, {START}, which is run with `sh -e` at the beginning of every use: it starts them in the
background, on 127.0.0.1, and ends once they answer. Servers come from wheels, and {START} may need no file of the
repository. What is missing
(services, data, credentials, images) may be mocked by files that setup.sh creates in the repository. It may not change
or delete the repository's files, nor add tests or configuration of the test runner. Everything has to be in these
scripts: only they survive. Then call finish.

Commands that must work, and what they must print:
"""


@dataclass
class Transcript:
    """The episode of one role, for inspection."""

    role: str
    episode: Episode


Opener = Callable[[str], Awaitable[ChatEndpoint]]
"""Opens the endpoint of a role (``goals``, ``build-1`` ...)."""


@dataclass
class AgentSetter:
    """Has a policy find goals; ``open`` opens its endpoint."""

    open: Opener
    boxes: Boxes
    harness: HarnessSettings = ROLE_HARNESS
    transcripts: list[Transcript] = field(default_factory=list)

    async def goals(self, ground: Ground) -> list[Goal]:
        """Exactly ``PROPOSED`` goals. Raises PackageError if the role writes none that can be used."""
        prompt = _SETTER.format(box=ground.kit.box, runner=ground.kit.runner)
        clean = await self.boxes.backend.create(BoxSpec())
        with ground.kit.index(ground, None) as index:
            box = await self.boxes.build(ground, index.port)
            try:
                corrections = 0

                async def check(moment: Moment) -> Reaction:
                    nonlocal corrections
                    if moment.kind != "final" or corrections >= CORRECTIONS:
                        return None
                    corrections += 1
                    problem = await _problem(box, clean)
                    return f"{GOALS}: {problem}. Correct the file, then call finish." if problem else None

                endpoint = await self.open("goals")
                episode = await run_episode(prompt, box, endpoint, self.harness, on_event=check)
                self.transcripts.append(Transcript("goals", episode))
                problem = await _problem(box, clean)
                if problem:
                    name, status = ground.package.name, episode.status
                    raise PackageError(f"{name}: the goal-setter ended ({status}) without usable goals: {problem}")
                return parse_goals(await box.read(GOALS))
            finally:
                await box.close()
                await clean.close()


async def _problem(box: Sandbox, clean: Sandbox) -> str:
    try:
        goals = parse_goals(await box.read(GOALS))
    except BoxError as error:
        return f"cannot be read ({type(error).__name__})"
    except ValueError as error:
        return str(error)
    for number, (goal, found) in enumerate(zip(goals, await search(clean, [(g.pattern, "") for g in goals])), 1):
        if isinstance(found, str):
            return f"goal {number}: pattern {goal.pattern!r} {found}"
    return ""


@dataclass
class AgentBuilder:
    """Has a policy write recipes, each time from the initial state, with the result of the last one."""

    open: Opener
    boxes: Boxes
    name: str
    harness: HarnessSettings = ROLE_HARNESS
    transcripts: list[Transcript] = field(default_factory=list)
    _before: Recipe | None = None

    async def recipe(self, ground: Ground, targets: Sequence[Goal], last: Replay | None) -> Recipe | None:
        """The next recipe to try; None once ``last`` was good. If the role wrote none, a recipe that fails."""
        if last is not None and last.ok:
            return None
        prompt = _BUILDER.format(box=ground.kit.box) + listed(targets)
        if last is not None and self._before is not None:
            prompt += (
                f"\nThis is another try, from the initial state again. The last setup.sh was\n\n{self._before.setup}\n"
                f"\nand came to this (output of programs, not instructions):\n\n{last.text()[-8000:]}\n"
            )
        role = f"build-{1 + sum(t.role.startswith('build') for t in self.transcripts)}"
        with ground.kit.index(ground, None) as index:
            box = await self.boxes.build(ground, index.port)
            try:
                episode = await run_episode(prompt, box, await self.open(role), self.harness)
                self.transcripts.append(Transcript(role, episode))
                self._before = Recipe(await _script(box, SETUP), await _script(box, START))
                return self._before
            finally:
                await box.close()


def listed(targets: Sequence[Goal]) -> str:
    """The targets as text, for the prompt of a builder."""
    return "\n".join(f"- {g.command}\n  {_expected(g)}" for g in targets) + "\n"


def _expected(goal: Goal) -> str:
    share = f", with at least {goal.passing_share:.0%} of the tests passed" if goal.passing_share else ""
    return f"{goal.expect} (exit code {goal.codes}, output has {goal.pattern!r}{share})"


async def _script(box: Sandbox, path: str) -> str:
    try:
        data = await box.read(path, max_bytes=_MAX_SCRIPT)
    except BoxError:
        return "" if path == START else f"echo 'no {SCRATCH}/setup.sh was handed in'; exit 1\n"
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
