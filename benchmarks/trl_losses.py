"""Compare advantages, losses and gradients with those of TRL's own code.

``PYTHON benchmarks/trl_losses.py``: PYTHON is an interpreter that has this project and TRL
(``pip install trl==1.16.0``). For each pair of an algorithm of a recipe and a configuration of TRL that promises the
same, TRL's trainer samples groups from a small policy of random weights, gives them rewards that are drawn at random,
and computes advantages, loss and gradient. From the same tokens and rewards ``build_batch`` and ``loss.backward`` make
ours. Off-policy pairs pretend that the policy which sampled was another one: normal noise is added to its
log-probabilities, enough that many tokens are clipped. Where one side differentiates another expression with the same
gradient (-advantage * log-probability for -advantage * ratio; k1 in the advantage for ratio * k3), the values of the
loss differ and only gradients are compared.

Figures are maxima over all pairs and seeds: of advantages, absolute; of losses, absolute; of gradients, the largest
difference of an entry divided by the largest entry. All arithmetic is float32; ``tests/train/test_loss.py`` compares
the same losses with float64.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from result import RESULTS, commit, write_result
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.policy.scratch import new_policy
from woodshed.policy.settings import PolicySettings
from woodshed.policy.state import hf_state
from woodshed.record.segment import Segment
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import Algorithm, annotate, load_algorithm
from woodshed.rl.algorithms.grpo import Grpo, lengths_of
from woodshed.rl.batching import build_batch
from woodshed.train.batch import TrainBatch
from woodshed.train.collate import collate, input_lengths, weighted
from woodshed.train.loss import TokenStats, backward
from woodshed.train.packing import micro_batches
from woodshed.train.settings import TrainSettings

GROUP, TOKENS = 6, 24
KL_BETA = 0.1
TEXTS = ("def add(a, b):\n    return a + b\n", "for name in names:\n    print(name)\n", "a test failed: 1 != 2")
"""The prompts."""
ROLLOUTS = len(TEXTS) * GROUP


@dataclass(frozen=True)
class Pair:
    """``algorithm`` with ``options`` and the settings ``train`` is to be what TRL computes with ``trl``.

    ``noise``: standard deviation of the pretended difference between the log-probabilities of the policy that sampled
    and of the one that is trained; 0 is on-policy. ``same_loss``: True if the values of the loss are the same too.
    ``divided_by``: what TRL divides the sum over tokens by: ``budget`` (rollouts x tokens that one may sample, as ours
    does), ``tokens`` (those that were sampled) or ``rollouts``.
    """

    algorithm: str
    trl: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    same_loss: bool = True
    trainer: Literal["GRPO", "RLOO"] = "GRPO"
    divided_by: str = "budget"


CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
NO_STD = {"scale_rewards": "none"}
OFF_CLIP = {"clip": {"low": 0.2, "high": 0.28}}
PAIRS = {
    "mean_baseline": Pair("mean_baseline", {"loss_type": "dr_grpo", **NO_STD}, same_loss=False),
    "mean_baseline, truncated": Pair(
        "mean_baseline",
        {"loss_type": "cispo", "epsilon_high": 1.2, **NO_STD},
        train={"importance": {"mode": "truncate", "cap": 1.2}},
        noise=0.3,
        divided_by="tokens",
    ),
    "leave_one_out": Pair("leave_one_out", {}, trainer="RLOO", same_loss=False, divided_by="rollouts"),
    "grpo": Pair("grpo", {"loss_type": "grpo", **CLIP}, train=OFF_CLIP, noise=0.3),
    "grpo, std off": Pair(
        "grpo", {"loss_type": "grpo", **NO_STD, **CLIP}, options={"std": False}, train=OFF_CLIP, noise=0.3
    ),
    "grpo, length off": Pair(
        "grpo", {"loss_type": "dr_grpo", **CLIP}, options={"length": False}, train=OFF_CLIP, noise=0.3
    ),
    "grpo, both off, k3": Pair(
        "grpo",
        {"loss_type": "dr_grpo", "beta": KL_BETA, "use_bias_correction_kl": False, **NO_STD, **CLIP},
        options={"std": False, "length": False},
        train={**OFF_CLIP, "kl": {"estimator": "k3"}, "importance": {"mode": "off"}},
        noise=0.3,
    ),
    "grpo, both off, k1": Pair(
        "grpo",
        {"loss_type": "dr_grpo", "beta": KL_BETA, "use_bias_correction_kl": True, **NO_STD, **CLIP},
        options={"std": False, "length": False},
        train={**OFF_CLIP, "kl": {"estimator": "k1"}, "importance": {"mode": "truncate", "cap": 1e9}},
        noise=0.3,
        same_loss=False,
    ),
    "gspo": Pair(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        train={"sequence_clip": {"low": 0.02, "high": 0.03}},
        noise=0.3,
    ),
}


@dataclass(frozen=True)
class Sampled:
    """Rollouts that TRL sampled, and their rewards.

    ``inputs``: what TRL's loss reads, with B rollouts of T tokens, padded. ``old_BT``: log-probabilities of the policy
    that is said to have sampled them. ``ref_BT``: those of the reference.
    """

    inputs: dict[str, Any]
    rewards_B: list[float]
    old_BT: Tensor
    ref_BT: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    detail: dict[str, Any] = {"commit": commit()}
    for name, pair in PAIRS.items():
        rows = [differences(pair, seed) for seed in range(args.seeds)]
        detail[name] = {key: max(row[key] for row in rows) for key in rows[0]}
        print(f"{name}: " + ", ".join(f"{key} {value:.2g}" for key, value in detail[name].items()), flush=True)
    compared = ("advantages", "loss", "gradient")
    figures = {f"{key}_max": max(detail[name].get(key, 0.0) for name in PAIRS) for key in compared}
    figures |= {"pairs": len(PAIRS), "seeds": args.seeds}
    write_result("trl_losses", figures, detail, RESULTS / "trl_losses.json")


def differences(pair: Pair, seed: int) -> dict[str, float]:
    """Return the differences between the two sides for one draw of weights, samples, rewards and noise."""
    with tempfile.TemporaryDirectory() as scratch:
        place = str(save_policy(untrained(seed), Path(scratch) / "policy"))
        trainer = trl_trainer(pair, place, Path(scratch) / "out", seed)
        sampled = sample(trainer, pair, seed)
        policy = load_policy(place)
    loss, gradient = trl_side(trainer, sampled)
    groups = groups_of(sampled)
    algorithm = load_algorithm(pair.algorithm, budget=TOKENS, options=pair.options)
    kl = KL_BETA if "beta" in pair.trl else 0.0
    batch, _ = build_batch(groups, algorithm, step=1, batch_id="b", generation_budget=TOKENS, kl_beta=kl)
    if kl:  # then no rollout is left out, and the batch has them in order
        batch.ref_logprobs = np.concatenate([row_of(sampled, i, sampled.ref_BT) for i in range(ROLLOUTS)])
    own_loss, own, unclipped = our_side(policy.decoder, batch, TrainSettings.model_validate(pair.train))
    factor = {
        "budget": 1.0,
        "tokens": ROLLOUTS * TOKENS / float(sampled.inputs["completion_mask"].sum()),
        "rollouts": float(TOKENS),
    }[pair.divided_by]
    advantages_B = np.concatenate([advantages_of(algorithm, group) for group in groups])
    return {
        **({"loss": abs(own_loss * factor - loss)} if pair.same_loss else {}),
        "advantages": float(np.abs(advantages_B - sampled.inputs["advantages"].numpy()).max()),
        "gradient": float((own * factor - gradient).abs().max() / gradient.abs().max()),
        "clipped_share": 1 - unclipped,
    }


def untrained(seed: int) -> Policy:
    settings = PolicySettings(d_model=32, num_layers=2, num_heads=2, num_kv_heads=1, d_ff=48, vocab_size=512, seed=seed)
    return new_policy(settings, TEXTS)


def trl_trainer(pair: Pair, place: str, out: Path, seed: int) -> Any:
    import datasets
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rng = np.random.default_rng(seed)
    tokenizer = AutoTokenizer.from_pretrained(place, padding_side="left")
    tokenizer.eos_token = tokenizer.pad_token = load_policy(place).format.stop_tokens[0]
    settings = getattr(trl, f"{pair.trainer}Config")(
        output_dir=str(out),
        per_device_train_batch_size=ROLLOUTS,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        seed=seed,
        **{"beta": 0.0, **pair.trl},
    )
    return getattr(trl, f"{pair.trainer}Trainer")(
        model=AutoModelForCausalLM.from_pretrained(place),
        reward_funcs=lambda completions, **_: rng.choice([0.0, 0.25, 1.0], len(completions)).tolist(),
        args=settings,
        train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in TEXTS]),
        processing_class=tokenizer,
    )


def sample(trainer: Any, pair: Pair, seed: int) -> Sampled:
    """Let TRL sample and reward ``GROUP`` rollouts of each prompt, and compute the advantages."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # as its training loop would
    inputs = trainer._generate_and_score_completions([{"prompt": t} for t in TEXTS for _ in range(GROUP)])
    mask_BT = inputs["completion_mask"]
    # Rollouts of a policy without training rarely end by themselves: cut them to different lengths.
    lengths_B = torch.from_numpy(np.random.default_rng(seed).integers(2, TOKENS + 1, len(mask_BT)))
    mask_BT *= torch.arange(mask_BT.shape[1]) < lengths_B[:, None]
    inputs["num_items_in_batch"] = mask_BT.sum()
    tokens_BT = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    whole_BT = torch.cat([inputs["prompt_mask"], mask_BT], 1)
    with torch.no_grad():
        logps_BT = trainer._get_per_token_logps_and_entropies(trainer.model, tokens_BT, whole_BT, mask_BT.shape[1])[0]
    noise = torch.Generator().manual_seed(seed)
    old_BT = logps_BT + pair.noise * torch.randn(logps_BT.shape, generator=noise)
    ref_BT = logps_BT + 0.5 * torch.randn(logps_BT.shape, generator=noise)
    inputs |= {"old_per_token_logps": old_BT, "ref_per_token_logps": ref_BT, "old_logps": (old_BT * mask_BT).sum(1)}
    (rewards,) = trainer._logs["rewards"].values()
    return Sampled(inputs, list(rewards), old_BT, ref_BT)


def groups_of(sampled: Sampled) -> list[list[Trajectory]]:
    """Return the rollouts as our gateway would record them."""
    rollouts = []
    for i, reward in enumerate(sampled.rewards_B):
        prompt = sampled.inputs["prompt_ids"][i][sampled.inputs["prompt_mask"][i] == 1]
        own = sampled.inputs["completion_ids"][i][sampled.inputs["completion_mask"][i] == 1]
        tokens = torch.cat([prompt, own]).numpy().astype(np.int32)
        is_own = np.arange(len(tokens)) >= len(prompt)
        logprobs = row_of(sampled, i, sampled.old_BT)
        segment = Segment(tokens, is_own, np.where(is_own, logprobs, 0), np.where(is_own, 0, -1).astype(np.int32))
        group = f"g{i // GROUP}"
        rollouts.append(
            Trajectory(f"t{i}", group, group, "train", "", "p", "submitted", [segment], rewards={"tests": reward})
        )
    return [rollouts[start : start + GROUP] for start in range(0, ROLLOUTS, GROUP)]


def row_of(sampled: Sampled, i: int, values_BT: Tensor) -> NDArray[np.float32]:
    """Return the values of rollout ``i`` for prompt and completion without padding; nan for the prompt."""
    own = values_BT[i][sampled.inputs["completion_mask"][i] == 1].numpy()
    return np.r_[np.full(int(sampled.inputs["prompt_mask"][i].sum()), np.nan), own].astype(np.float32)


def advantages_of(algorithm: Algorithm, group: Sequence[Trajectory]) -> NDArray[np.float64]:
    """Return each rollout's advantage: its token weights without the normalisation by length that is part of them."""
    weights = [float(weights[algorithm.parts[0]][-1]) for (weights,) in annotate(algorithm, group)]
    by_length = isinstance(algorithm, Grpo) and algorithm.length
    return np.array(weights) * (lengths_of(group) / TOKENS if by_length else 1.0)


def trl_side(trainer: Any, sampled: Sampled) -> tuple[float, Tensor]:
    """Return TRL's loss and its gradient, all parameters in a row, by name."""
    loss = trainer._compute_loss(trainer.model, sampled.inputs)
    loss.backward()
    return float(loss), in_a_row({name: p.grad for name, p in trainer.model.named_parameters()})


def our_side(decoder: Decoder, batch: TrainBatch, settings: TrainSettings) -> tuple[float, Tensor, float]:
    """Return our loss, its gradient as TRL's, and the share of policy-gradient tokens that no clipping holds back."""
    used, seen = weighted(batch), TokenStats()
    lengths = input_lengths(batch, used)
    for rows in micro_batches(batch, lengths, settings.microbatch_tokens):
        backward(decoder, collate(batch, rows, lengths, used, decoder.device), batch.denominators, settings, seen)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.grad)  # to give gradients the names and shapes of a Hugging Face model
    factors, ratios = torch.cat(seen.importance), torch.cat(seen.dlogp).exp()
    free = float((factors / ratios > 0.999).float().mean())
    return sum(seen.loss.values()), in_a_row(hf_state(decoder)), free


def in_a_row(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


if __name__ == "__main__":
    main()
