"""The recipe of a run: the settings of every folder, and the rules between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from woodshed.engine.settings import EngineSettings
from woodshed.evaluate.settings import EvaluateSettings
from woodshed.grading.settings import GradingSettings
from woodshed.harness.registry import check_tools
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.settings import PolicySettings
from woodshed.record.settings import Settings, is_reference
from woodshed.rl.settings import RLSettings
from woodshed.rollout.rewards.tool_collapse import KINDS, TOOLS, kinds_of
from woodshed.sandbox.settings import SandboxSettings
from woodshed.tasks.settings import CustomSettings, PackageTaskSettings, SyntheticSettings
from woodshed.tasks.sources.custom import load_source
from woodshed.train.settings import TrainSettings
from woodshed.weights.settings import WeightSettings

from .stages import LearnSettings


class TaskMix(Settings):
    """The tasks that the agent works on."""

    main: str = "synthetic"
    """Tasks of SFT, RL and the headline evaluation: ``synthetic``, ``packages``, or a source of your own as
    ``"module:function"`` (``examples/custom_source.py``)."""
    synthetic: SyntheticSettings = SyntheticSettings()
    """Generated small repositories."""
    packages: PackageTaskSettings | None = None
    """Real packages; if they are not ``main``, they are evaluated before and after RL, to measure transfer."""
    custom: CustomSettings = CustomSettings()
    """Number of tasks to request from a source of your own."""

    @field_validator("main")
    @classmethod
    def _known(cls, main: str) -> str:
        if is_reference(main):
            load_source(main)
        elif main not in ("synthetic", "packages"):
            raise ValueError(f"unknown task source {main!r}; known: synthetic, packages, or 'module:function'")
        return main

    @property
    def family(self) -> Literal["synthetic", "packages", "custom"]:
        """Kind of the main tasks; the first part of the names of their folders in a run directory."""
        if is_reference(self.main):
            return "custom"
        return "packages" if self.main == "packages" else "synthetic"


class Recipe(Settings):
    """Everything that determines a run."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Name of the run; its directory is ``runs/NAME`` unless ``--out`` is given."""
    description: str = ""
    """One sentence for people."""
    seed: int = 0
    """Seed of tasks, initial weights, demonstrations and data order."""
    policy: PolicySettings = PolicySettings()
    """The network to start from."""
    tasks: TaskMix = TaskMix()
    """The tasks to learn on."""
    learn: LearnSettings = LearnSettings()
    """Corpus, pretraining, demonstrations, SFT."""
    harness: Annotated[HarnessSettings, AfterValidator(check_tools)] = HarnessSettings()
    """The agent program: tools, limits, prompts."""
    grading: GradingSettings = GradingSettings()
    """Files that are passed to grading, and held-out test inputs."""
    rl: RLSettings = RLSettings()
    """Asynchronous RL."""
    train: TrainSettings = TrainSettings()
    """Optimizer and loss of the RL trainer."""
    weights: WeightSettings = WeightSettings()
    """The weight chain from trainer to server."""
    engine: EngineSettings = EngineSettings()
    """The engine that samples tokens."""
    sandbox: SandboxSettings = SandboxSettings()
    """The boxes in which untrusted code runs."""
    evaluate: EvaluateSettings = EvaluateSettings()
    """Evaluation before and after RL."""

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        if self.tasks.main == "packages" and self.tasks.packages is None:
            raise ValueError('tasks.main is "packages" but there is no [tasks.packages] table; add one')
        packages = self.tasks.packages if self.tasks.main == "packages" else None
        searching = packages and not packages.folder and packages.prompt == "terse" and "mutate" in packages.kinds
        if searching and "grep" not in self.harness.tools:
            raise ValueError(
                'terse instructions do not name the file to change: add "grep" to harness.tools, or set '
                'tasks.packages.prompt = "located"'
            )
        backend = self.sandbox.backend
        if self.harness.program is not None and backend != "namespace" and not is_reference(backend):
            raise ValueError(
                f"harness.program asks a gateway from inside its box, and boxes of the {backend} backend "
                'have no network: set sandbox.backend = "namespace"'
            )
        if self.harness.program is not None and self.rl.forks.count:
            raise ValueError(
                f"rl.forks.count is {self.rl.forks.count}: a fork repeats the calls of the built-in agent, and "
                "harness.program is another one; set rl.forks.count = 0 or leave harness.program out"
            )
        if self.harness.program is not None and self.learn.demonstrations.episodes:
            raise ValueError(
                "harness.program: demonstrations show our own agent at work, not the program; set "
                "learn.demonstrations.episodes = 0 and start from a policy that can follow the program's prompts, or "
                "give conversations with the program as learn.demonstrations.conversations"
            )
        if self.learn.demonstrations.hinted and self.harness.summary.trigger_tokens:
            raise ValueError(
                "learn.demonstrations.hinted shows conversations of one context, and harness.summary.trigger_tokens "
                "cuts them into several: set one of the two to 0"
            )
        self._check_tool_collapse()
        compact = self.policy.format == "compact" or (self.policy.format == "auto" and self.policy.source == "scratch")
        if compact and self.harness.output.separator:
            raise ValueError(
                'chat format "compact" copies line numbers with their line: set harness.output.separator = ""'
            )
        if compact and (self.rl.hints.weight or self.learn.demonstrations.hinted) and self.rl.hints.role != "tool":
            raise ValueError(
                'rl.hints: chat format "compact" renders no system messages, and a user message begins a conversation: '
                'set rl.hints.role = "tool"'
            )
        if self.policy.source == "scratch" and self.learn.sft.max_tokens > self.policy.max_positions:
            raise ValueError(
                f"learn.sft.max_tokens is {self.learn.sft.max_tokens}, and a policy from scratch takes contexts of at "
                f"most policy.max_positions = {self.policy.max_positions}; lower the one or raise the other"
            )
        if self.evaluate.baselines and not self.learn.demonstrations.any:
            raise ValueError(
                "evaluate.baselines compares RL with SFT, and learn.demonstrations.episodes is 0: raise it, give "
                "learn.demonstrations.conversations, or set evaluate.baselines = false"
            )
        develop = {"synthetic": self.tasks.synthetic.dev, "custom": self.tasks.custom.dev}
        if len(self.evaluate.temperatures) > 1 and develop.get(self.tasks.family) == 0:
            raise ValueError(
                f"evaluate.temperatures are compared on development tasks, and tasks.{self.tasks.family}.dev is 0: "
                "raise it, or give one temperature"
            )
        if self.rl.growth.make and self.tasks.family != "synthetic":
            raise ValueError(
                f"rl.growth.make is {self.rl.growth.make}, and only synthetic tasks can be made harder during a run; "
                f"tasks.main is {self.tasks.main!r}: set rl.growth.make = 0 (rl.growth.check works for all tasks), and "
                "give `woodshed tasks refresh` between runs"
            )
        if self.rl.rounds > 1 and not self.learn.solved.after_rl:
            raise ValueError(
                f"rl.rounds is {self.rl.rounds}, and a round ends with learning from what it solved: set "
                "learn.solved.after_rl = true, or rl.rounds = 1"
            )
        if self.rl.rounds > max(1, self.rl.steps):
            raise ValueError(
                f"rl.rounds is {self.rl.rounds} and rl.steps {self.rl.steps}; a round takes a step at least"
            )
        needed = self.rl.steps * self.rl.groups_per_step
        drawn = {"synthetic": self.tasks.synthetic.train, "custom": self.tasks.custom.train}
        family = self.tasks.family
        if family in drawn and drawn[family] < needed:
            raise ValueError(
                f"rl.steps x rl.groups_per_step needs {needed} training tasks (a prompt is never trained twice) and "
                f"tasks.{family}.train is {drawn[family]}; lower rl.steps or raise tasks.{family}.train"
            )
        return self

    def _check_tool_collapse(self) -> None:
        """Raise ValueError if ``tool_collapse`` would penalise shell work for which the harness has no tool."""
        term = self.rl.rewards.get("tool_collapse")
        if term is None or not term.weight or self.harness.program is not None:
            return
        kinds = kinds_of(str(term.options.get("kinds", KINDS)))
        lacking = [kind for kind in kinds if not set(TOOLS[kind]) & set(self.harness.tools)]
        if lacking:
            rest = ",".join(kind for kind in kinds if kind not in lacking)
            raise ValueError(
                f"rl.rewards.tool_collapse counts {lacking[0]} work in the shell, and harness.tools has none of "
                f'{", ".join(TOOLS[lacking[0]])}: add one, or set options = {{ kinds = "{rest}" }}'
            )
