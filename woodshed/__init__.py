"""Woodshed trains coding agents in the very harness they ship in.

The names below are what a notebook or another program composes; each is loaded when it is first used. Importing this
package imports nothing heavy: no torch, no HTTP server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from woodshed.engine.local import LocalEngine as LocalEngine
    from woodshed.engine.protocol import Completion as Completion
    from woodshed.engine.protocol import Engine as Engine
    from woodshed.engine.protocol import Sampling as Sampling
    from woodshed.evaluate.statistics import Estimate as Estimate
    from woodshed.evaluate.statistics import bootstrap as bootstrap
    from woodshed.evaluate.statistics import paired_gain as paired_gain
    from woodshed.evaluate.statistics import pass_at_k as pass_at_k
    from woodshed.gateway.client import GatewayAdmin as GatewayAdmin
    from woodshed.grading.settings import GradingSettings as GradingSettings
    from woodshed.grading.verify import grade as grade
    from woodshed.grading.verify import submission_from as submission_from
    from woodshed.harness.endpoint import HttpEndpoint as HttpEndpoint
    from woodshed.harness.loop import run_episode as run_episode
    from woodshed.harness.settings import HarnessSettings as HarnessSettings
    from woodshed.harness.tools.base import Tool as Tool
    from woodshed.policy.config import DecoderConfig as DecoderConfig
    from woodshed.policy.decoder import Decoder as Decoder
    from woodshed.policy.formats.base import ChatFormat as ChatFormat
    from woodshed.policy.hf import Policy as Policy
    from woodshed.policy.hf import load_policy as load_policy
    from woodshed.policy.hf import save_policy as save_policy
    from woodshed.recipe.load import load_recipe as load_recipe
    from woodshed.recipe.recipe import Recipe as Recipe
    from woodshed.record.run_directory import RunDirectory as RunDirectory
    from woodshed.record.segment import Segment as Segment
    from woodshed.record.store import TrajectoryStore as TrajectoryStore
    from woodshed.record.task import Task as Task
    from woodshed.record.task import TaskInfo as TaskInfo
    from woodshed.record.trajectory import Effort as Effort
    from woodshed.record.trajectory import Outcome as Outcome
    from woodshed.record.trajectory import ToolEvent as ToolEvent
    from woodshed.record.trajectory import Trajectory as Trajectory
    from woodshed.rl.algorithms.base import Algorithm as Algorithm
    from woodshed.rl.algorithms.base import load_algorithm as load_algorithm
    from woodshed.rl.batching import build_batch as build_batch
    from woodshed.rollout.rewards.base import RewardTerm as RewardTerm
    from woodshed.rollout.rewards.base import load_term as load_term
    from woodshed.rollout.rewards.base import reward_function as reward_function
    from woodshed.rollout.rollout import Arena as Arena
    from woodshed.sandbox.backends.by_name import open_backend as open_backend
    from woodshed.sandbox.layers import LayerStore as LayerStore
    from woodshed.sandbox.protocol import Backend as Backend
    from woodshed.sandbox.protocol import BoxSpec as BoxSpec
    from woodshed.sandbox.protocol import Egress as Egress
    from woodshed.sandbox.protocol import Limits as Limits
    from woodshed.sandbox.protocol import Sandbox as Sandbox
    from woodshed.train.batch import TrainBatch as TrainBatch
    from woodshed.train.trainer import Trainer as Trainer
    from woodshed.weights.chain import Publisher as Publisher
    from woodshed.weights.follow import Follower as Follower

__version__ = "0.1.0"

_MODULES = {
    "engine.local": ("LocalEngine",),
    "engine.protocol": (
        "Completion",
        "Engine",
        "Sampling",
    ),
    "evaluate.statistics": (
        "Estimate",
        "bootstrap",
        "paired_gain",
        "pass_at_k",
    ),
    "gateway.client": ("GatewayAdmin",),
    "grading.settings": ("GradingSettings",),
    "grading.verify": (
        "grade",
        "submission_from",
    ),
    "harness.endpoint": ("HttpEndpoint",),
    "harness.loop": ("run_episode",),
    "harness.settings": ("HarnessSettings",),
    "harness.tools.base": ("Tool",),
    "policy.config": ("DecoderConfig",),
    "policy.decoder": ("Decoder",),
    "policy.formats.base": ("ChatFormat",),
    "policy.hf": (
        "Policy",
        "load_policy",
        "save_policy",
    ),
    "recipe.load": ("load_recipe",),
    "recipe.recipe": ("Recipe",),
    "record.run_directory": ("RunDirectory",),
    "record.segment": ("Segment",),
    "record.store": ("TrajectoryStore",),
    "record.task": (
        "Task",
        "TaskInfo",
    ),
    "record.trajectory": (
        "Effort",
        "Outcome",
        "ToolEvent",
        "Trajectory",
    ),
    "rl.algorithms.base": (
        "Algorithm",
        "load_algorithm",
    ),
    "rl.batching": ("build_batch",),
    "rollout.rewards.base": (
        "RewardTerm",
        "load_term",
        "reward_function",
    ),
    "rollout.rollout": ("Arena",),
    "sandbox.backends.by_name": ("open_backend",),
    "sandbox.layers": ("LayerStore",),
    "sandbox.protocol": (
        "Backend",
        "BoxSpec",
        "Egress",
        "Limits",
        "Sandbox",
    ),
    "train.batch": ("TrainBatch",),
    "train.trainer": ("Trainer",),
    "weights.chain": ("Publisher",),
    "weights.follow": ("Follower",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Algorithm",
    "Arena",
    "Backend",
    "BoxSpec",
    "ChatFormat",
    "Completion",
    "Decoder",
    "DecoderConfig",
    "Effort",
    "Egress",
    "Engine",
    "Estimate",
    "Follower",
    "GatewayAdmin",
    "GradingSettings",
    "HarnessSettings",
    "HttpEndpoint",
    "LayerStore",
    "Limits",
    "LocalEngine",
    "Outcome",
    "Policy",
    "Publisher",
    "Recipe",
    "RewardTerm",
    "RunDirectory",
    "Sampling",
    "Sandbox",
    "Segment",
    "Task",
    "TaskInfo",
    "Tool",
    "ToolEvent",
    "TrainBatch",
    "Trainer",
    "Trajectory",
    "TrajectoryStore",
    "bootstrap",
    "build_batch",
    "grade",
    "load_algorithm",
    "load_policy",
    "load_recipe",
    "load_term",
    "open_backend",
    "paired_gain",
    "pass_at_k",
    "reward_function",
    "run_episode",
    "save_policy",
    "submission_from",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'woodshed' has no attribute {name!r}")
    value = getattr(import_module(f"woodshed.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
