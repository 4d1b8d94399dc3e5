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
    from woodshed.gateway.app import build_app as build_app
    from woodshed.gateway.client import GatewayAdmin as GatewayAdmin
    from woodshed.grading.settings import GradingSettings as GradingSettings
    from woodshed.grading.verify import grade as grade
    from woodshed.grading.verify import submission_from as submission_from
    from woodshed.harness.endpoint import HttpEndpoint as HttpEndpoint
    from woodshed.harness.errors import ToolError as ToolError
    from woodshed.harness.loop import run_episode as run_episode
    from woodshed.harness.session import Session as Session
    from woodshed.harness.settings import HarnessSettings as HarnessSettings
    from woodshed.harness.tools.base import Arguments as Arguments
    from woodshed.harness.tools.base import Tool as Tool
    from woodshed.harness.tools.base import ToolResult as ToolResult
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
    from woodshed.rollout.agent import Agent as Agent
    from woodshed.rollout.agent import BuiltinAgent as BuiltinAgent
    from woodshed.rollout.agent import ProgramAgent as ProgramAgent
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

_PLACES = {
    "LocalEngine": "engine.local",
    "Completion": "engine.protocol",
    "Engine": "engine.protocol",
    "Sampling": "engine.protocol",
    "Estimate": "evaluate.statistics",
    "bootstrap": "evaluate.statistics",
    "paired_gain": "evaluate.statistics",
    "pass_at_k": "evaluate.statistics",
    "build_app": "gateway.app",
    "GatewayAdmin": "gateway.client",
    "GradingSettings": "grading.settings",
    "grade": "grading.verify",
    "submission_from": "grading.verify",
    "HttpEndpoint": "harness.endpoint",
    "ToolError": "harness.errors",
    "run_episode": "harness.loop",
    "Session": "harness.session",
    "HarnessSettings": "harness.settings",
    "Tool": "harness.tools.base",
    "Arguments": "harness.tools.base",
    "ToolResult": "harness.tools.base",
    "DecoderConfig": "policy.config",
    "Decoder": "policy.decoder",
    "ChatFormat": "policy.formats.base",
    "Policy": "policy.hf",
    "load_policy": "policy.hf",
    "save_policy": "policy.hf",
    "load_recipe": "recipe.load",
    "Recipe": "recipe.recipe",
    "RunDirectory": "record.run_directory",
    "Segment": "record.segment",
    "TrajectoryStore": "record.store",
    "Task": "record.task",
    "TaskInfo": "record.task",
    "Effort": "record.trajectory",
    "Outcome": "record.trajectory",
    "ToolEvent": "record.trajectory",
    "Trajectory": "record.trajectory",
    "Algorithm": "rl.algorithms.base",
    "load_algorithm": "rl.algorithms.base",
    "build_batch": "rl.batching",
    "Agent": "rollout.agent",
    "BuiltinAgent": "rollout.agent",
    "ProgramAgent": "rollout.agent",
    "RewardTerm": "rollout.rewards.base",
    "load_term": "rollout.rewards.base",
    "reward_function": "rollout.rewards.base",
    "Arena": "rollout.rollout",
    "open_backend": "sandbox.backends.by_name",
    "LayerStore": "sandbox.layers",
    "Backend": "sandbox.protocol",
    "BoxSpec": "sandbox.protocol",
    "Egress": "sandbox.protocol",
    "Limits": "sandbox.protocol",
    "Sandbox": "sandbox.protocol",
    "TrainBatch": "train.batch",
    "Trainer": "train.trainer",
    "Publisher": "weights.chain",
    "Follower": "weights.follow",
}
"""Public name -> module below ``woodshed``; the imports above say the same to type checkers."""

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'woodshed' has no attribute {name!r}")
    value = getattr(import_module(f"woodshed.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
