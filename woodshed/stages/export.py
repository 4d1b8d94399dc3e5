"""The policy that RL ends with, for everybody's tools."""

from __future__ import annotations

from woodshed.policy.hf import load_policy, save_policy
from woodshed.policy.state import load_hf_state
from woodshed.record.run_directory import RunDirectory
from woodshed.weights.follow import Follower


def export_final(run: RunDirectory, chain: str) -> int:
    """The head of the weight chain as ``policy/final``, in Hugging Face layout; its version comes back."""
    newest = Follower(chain).poll()
    if newest is None:
        raise FileNotFoundError(f"{chain} has no published version; the trainer never started")
    version, state = newest
    policy = load_policy(run.policy("sft"))
    load_hf_state(policy.decoder, state)
    policy.version = version
    save_policy(policy, run.policy("final"))
    return version
