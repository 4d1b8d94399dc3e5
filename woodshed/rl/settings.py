"""Settings of the reinforcement-learning stage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from woodshed.engine.settings import Truncation
from woodshed.grading.settings import JudgeSettings, MonitorSettings
from woodshed.monitors import load_monitor
from woodshed.record.settings import Settings, is_reference
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.rewards import RewardFunction, RewardTerms, check_builtin, reward_function

from .algorithms import Algorithm, load_algorithm
from .concurrency import AdaptiveSettings
from .forks import ForkSettings
from .growth.choose import GrowthSettings
from .health.settings import AlarmSettings
from .hints.settings import HintSettings
from .reader.settings import ReaderSettings, RubricSettings


class CurriculumSettings(Settings):
    """Order of the training tasks."""

    order: Literal["random", "variance"] = "random"
    """``variance`` prefers tasks whose rollouts are expected to get different rewards, judged by the pass rates of
    similar tasks."""
    candidates: int = Field(default=64, ge=1)
    """Number of unused tasks among which each choice is made."""
    half_life: float = Field(default=10.0, gt=0)
    """Number of policy versions after which a pass rate counts half."""
    group_weight: float = Field(default=0.5, gt=0, le=1)
    """Number of independent rollouts that one rollout of a group counts as."""
    harder: float = Field(default=0.5, ge=0)
    """Extra weight, at the end of the run, of tasks whose similar tasks took twice the mean effort (turns and thinking
    tokens): 0.5 means 1.5 times the weight."""


class DynamicSamplingSettings(Settings):
    """Replaces groups whose token weights would all be 0, because their rewards are equal, by further groups (DAPO,
    arXiv:2503.14476, section 3.2)."""

    enabled: bool = False
    """Replace such groups. A run then needs more tasks, since a task of a replaced group is not used again."""
    max_share: float = Field(default=0.75, ge=0, lt=1)
    """Share of the groups sampled for a batch that may be replaced: 0.75 is three times ``groups_per_step``, or
    three times the groups that wait for a batch behind a slow one, if these are more."""
    beyond: Literal["train", "stop"] = "train"
    """Treatment of such groups beyond ``max_share``: ``train`` puts them into the batch, ``stop`` pauses the run."""

    def limit(self, kept: int) -> int:
        """Return the number of groups that may be replaced while one batch is filled, next to ``kept`` others."""
        return int(self.max_share / (1 - self.max_share) * kept + 1e-9)


class RLSettings(Settings):
    """Asynchronous RL: rollouts never wait for a step, the trainer never waits for a straggler."""

    steps: int = Field(default=60, ge=0)
    """Number of optimizer steps, of all rounds together."""
    rounds: int = Field(default=1, ge=1)
    """Number of parts of equal length into which the steps are divided. After each part the policy is trained anew on
    all episodes solved so far (``learn.solved.after_rl``) and evaluated, and the next part starts from it with a new
    optimizer and, for ``kl_beta``, a new reference."""
    groups_per_step: int = Field(default=12, ge=1)
    """Number of groups (prompts) in one batch."""
    group_size: int = Field(default=8, ge=1)
    """Number of rollouts per prompt, G; 1 only for algorithms that do not compare rollouts of a group (``reinforce``,
    ``raft``)."""
    probes: int | None = Field(default=None, ge=2)
    """Number of rollouts of a group that are run first; the others follow only if some of these solved the task and
    some did not, since a group that agrees teaches hardly anything. None, or no fewer than ``group_size``, runs all at
    once."""
    mode: Literal["async", "sync"] = "async"
    """``sync`` sets ``max_staleness`` to 0, so that the groups of a step are dispatched only when the weights of the
    step before are there: for comparison only."""
    max_staleness: int = Field(default=1, ge=0)
    """A group is dispatched only if it can be trained at most this many versions later (AReaL's capacity rule)."""
    max_token_age: int = Field(default=4, ge=0)
    """A finished group whose oldest token is more versions old than this is dropped; it stays stored and counted."""
    window: int | None = Field(default=None, ge=1)
    """Number of groups, counted in the order of dispatch from the oldest unfinished one, of which the next batch may
    take finished ones; dropped groups are not counted. A larger window lets the trainer wait less for a slow group,
    whose tokens are then older when it is trained. 1 is plain FIFO: each batch waits for its slowest group. A number as
    large as that of all groups is greedy: slow groups are overtaken until they are too old and dropped, so training
    prefers tasks with short episodes. Default: (``max_token_age`` - ``max_staleness``) x ``groups_per_step`` + 1, the
    largest window in which no group becomes too old by being overtaken."""
    concurrency: int = Field(default=64, ge=1)
    """Number of rollouts in flight; with ``adaptive`` the maximum."""
    adaptive: AdaptiveSettings = AdaptiveSettings()
    """Reduces the number of rollouts in flight when the trainer is the bottleneck."""
    attempts: int = Field(default=3, ge=1)
    """Maximum number of tries per rollout before an infrastructure error is recorded as its outcome."""
    replacements: int = Field(default=1, ge=0)
    """Maximum number of fresh rollouts, one after the other, in place of one with that outcome; 0 leaves its group
    smaller."""
    max_infra_rate: float = Field(default=0.5, ge=0, le=1)
    """Share of the last ``infra_window`` rollouts that may end by infrastructure errors; above it the run stops and
    says what fails."""
    infra_window: int = Field(default=32, ge=2)
    """Number of rollouts over which that share is counted. They must be of more than one task."""
    dynamic_sampling: DynamicSamplingSettings = DynamicSamplingSettings()
    """Replacement of groups from which nothing can be learned."""
    alarms: AlarmSettings = AlarmSettings()
    """Alarms on the metrics of the steps: which ones warn, and which pause the run."""
    sampling: Truncation = Truncation()
    """Truncation of the rollouts' sampling, such as ``{ top_p = 0.95 }``. The kept set of each token is recorded and
    the trainer renormalises over it, so importance ratios stay unbiased. Evaluation samples from the whole
    distribution."""
    algorithm: str = "mean_baseline"
    """Algorithm that gives the tokens of a group their weights: mean_baseline (subtracts the group's mean reward and
    does not divide by the standard deviation), leave_one_out, grpo, gspo, reinforce, raft, tree (``forks``), or
    ``"module:Class"`` of your own."""
    algorithm_options: dict[str, bool | int | float | str] = {}
    """Keyword arguments of the algorithm, for example ``{std = false}`` for grpo."""
    generation_budget: int = Field(default=40, ge=1)
    """Constant token count per rollout in the loss denominator (Dr. GRPO); independent of the rollout's own length.
    Forks are not counted there, so a run with forks takes larger steps at the same learning rate."""
    kl_beta: float = Field(default=0.0, ge=0)
    """Weight, per sampled token, of the KL term to the policy that RL starts from; 0 turns it off. Above 0 the trainer
    also keeps that policy in memory."""
    hints: HintSettings = HintSettings()
    """Hints for messages that went wrong, and the weight of learning from them."""
    train_summaries: bool = True
    """Train the policy's summaries of its own context (``harness.summary``) like its other tokens. False is the control
    of an ablation; ``learn.solved`` leaves them out then, too."""
    forks: ForkSettings = ForkSettings()
    """Continuations from a state in the middle of a rollout, for ``algorithm = "tree"``."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Order of the training tasks."""
    growth: GrowthSettings = GrowthSettings()
    """Tasks that are made and checked during the run, by the pass rates of its own groups."""
    rewards: RewardTerms = {}
    """Reward terms by name: outcome, effort, invalid_call, unread_edit, repeated_failure, unfinished_todos,
    untested_finish, unfounded_claim, silent_finish, style, commented_out, tool_collapse, or ``"module:function"`` of
    your own. The training reward is their weighted sum; evaluation always reports the raw outcome."""
    monitors: MonitorSettings = MonitorSettings()
    """Monitors for reward hacks, and what happens when one fires; ``"module:function" = "flag"`` adds one of your
    own."""
    judge: JudgeSettings | None = None
    """The model that ``monitors.judge`` asks; in evaluation too."""
    rubrics: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], RubricSettings] = {}
    """Aspects of behaviour by name, each a reward term ``rubric_NAME``. The model of ``reader`` scores them."""
    reader: ReaderSettings | None = None
    """The model that reads training episodes, for the trigger ``reader`` of ``hints`` and for ``rubrics``."""

    @field_validator("monitors")
    @classmethod
    def _loadable(cls, value: MonitorSettings) -> MonitorSettings:
        for name, treatment in value.custom.items():
            if treatment != "off":
                load_monitor(name)
        return value

    @model_validator(mode="before")
    @classmethod
    def _synchronous(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("mode") == "sync":
            return {"max_staleness": 0, **values}
        return values

    @model_validator(mode="after")
    def _possible(self) -> RLSettings:
        if not is_reference(self.algorithm):  # the user's own code is loaded only when the recipe runs
            self.make_algorithm()
        for name, term in self.rewards.items():
            if not is_reference(name):
                check_builtin(name, term)
        if self.monitors.judge != "off" and self.judge is None:
            raise ValueError("monitors.judge needs a model to ask: set rl.judge.base_url and rl.judge.model")
        asked = ["rl.hints.triggers"] * ("reader" in self.hints.triggers) + ["rl.rubrics"] * bool(self.rubrics)
        if asked and self.reader is None:
            raise ValueError(f'{asked[0]} needs a model that reads: set rl.reader.base_url, to "policy" for the policy')
        if self.reader is not None and not asked:
            raise ValueError('reader has nothing to do: add "reader" to rl.hints.triggers, or a table rl.rubrics.NAME')
        if self.adaptive.enabled and self.adaptive.least > self.concurrency:
            raise ValueError(
                f"adaptive.least is {self.adaptive.least} and concurrency {self.concurrency}, the most rollouts in "
                "flight; lower rl.adaptive.least or raise rl.concurrency"
            )
        if self.mode == "sync" and self.max_staleness != 0:
            raise ValueError(
                f"mode 'sync' sets max_staleness to 0, and it is {self.max_staleness}; set rl.max_staleness=0, leave "
                'it out, or set rl.mode="async"'
            )
        if self.max_token_age < self.max_staleness:
            raise ValueError(
                f"max_token_age is {self.max_token_age} and max_staleness {self.max_staleness}, so groups would be "
                "sampled and then dropped as too old; raise rl.max_token_age"
            )
        self.growth.check_against(self.groups_per_step)
        return self

    @property
    def batch_window(self) -> int:
        """The value of ``window``, or its default.

        The default follows from the worst case. A group that is dispatched last at version v has
        (v + max_staleness + 1) x groups_per_step - 1 groups before it. With the window - 1 groups after it that may
        overtake it, v + max_staleness + 1 + (window - 2) // groups_per_step batches can be formed without it. The next
        batch takes it and is trained at the version of that number, which must not exceed v + max_token_age.
        """
        if self.window is not None:
            return self.window
        return (self.max_token_age - self.max_staleness) * self.groups_per_step + 1

    def make_algorithm(self) -> Algorithm:
        """Return the algorithm of ``algorithm`` with its options. Raises ValueError."""
        made = load_algorithm(self.algorithm, budget=self.generation_budget, options=self.algorithm_options)
        if made.least > self.group_size:
            raise ValueError(
                f"group_size is {self.group_size}: {self.algorithm} compares at least {made.least} rollouts of a prompt"
                '; raise rl.group_size, or choose rl.algorithm="reinforce"'
            )
        if self.forks.count and not made.forks:
            raise ValueError(
                f"forks.count is {self.forks.count}: {self.algorithm} does not compare forks; choose "
                'rl.algorithm="tree", or set rl.forks.count=0'
            )
        if self.dynamic_sampling.enabled and type(made).observe is not Algorithm.observe:
            raise ValueError(
                f"dynamic_sampling needs an algorithm that compares the rollouts of a group, and {self.algorithm} "
                'compares with earlier batches; set rl.dynamic_sampling.enabled=false or rl.algorithm="mean_baseline"'
            )
        return made

    def reward_caps(self) -> dict[str, float]:
        """Return the ``cap`` of each reward term that has one."""
        return {name: term.cap for name, term in self.rewards.items() if term.cap is not None}

    def make_reward(self) -> RewardFunction:
        """Return the training reward of ``rewards`` and ``rubrics``. Raises ValueError."""
        terms = reward_function(self.rewards)

        def reward(task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
            rated = {f"rubric_{n}": r.weight * trajectory.ratings.get(n, 0.0) for n, r in self.rubrics.items()}
            return {**terms(task, trajectory, outcome), **rated}

        return reward if self.rubrics else terms
