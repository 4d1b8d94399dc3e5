"""Settings of the supervised stages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from woodshed.record.settings import Settings


class CorpusSettings(Settings):
    """Text for the tokenizer and for pretraining, made from generated functions and the standard library."""

    functions: int = Field(default=4000, ge=8)
    """Number of generated functions, of the ``sft`` split."""
    tokens: int = Field(default=1_300_000, ge=1000)
    """Number of pretraining tokens."""
    library_share: float = Field(default=0.03, ge=0, le=1)
    """Share of conversations about short functions of Python's standard library. General code uses up much of a tiny
    policy's capacity."""
    protocol_share: float = Field(default=0.2, ge=0, le=1)
    """Share of conversations that also run tests and finish (not executed); the others only read and edit."""
    retry_share: float = Field(default=0.5, ge=0, le=1)
    """Share of conversations with tests in which one or two attempts fail first; failed edits have the weight of
    context."""
    context_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of context tokens; actions have weight 1."""


class PretrainSettings(Settings):
    """Pretraining of a policy from scratch."""

    batch_tokens: int = Field(default=1024, ge=16)
    """Tokens per optimizer step. Small batches matter for tiny policies."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon (matrices)."""
    other_lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate of AdamW (embeddings, norms)."""
    final_lr: float = Field(default=0.3, ge=0, le=1)
    """Final learning rate as a fraction of the peak."""
    products: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the operands of matrix products, see ``train.products``."""


class DemonstrationSettings(Settings):
    """Scripted, imperfect demonstrations, executed in sandboxes through the harness, and conversations of your own."""

    episodes: int = Field(default=5000, ge=0)
    """Number of scripted demonstrations."""
    conversations: tuple[Path, ...] = ()
    """Files with conversations to learn from too, one on each line in the format of OpenAI's fine-tuning: ``messages``
    (one of the assistant may have a ``weight``, by default 1) and ``tools``. They count as verified."""
    right_edit: float = Field(default=0.45, ge=0, le=1)
    """Chance that an attempt is the correct edit; otherwise it is a random mutation."""
    broken_edit: float = Field(default=0.35, ge=0, le=1)
    """Share of the other attempts that do not even parse, the most frequent mistake of a small policy; of synthetic
    tasks."""
    wrong_edit_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of edits that parse but do not fix the bug. At 0 the policy learns only what to do after them. Edits
    that do not parse always have weight 0."""
    untested_finish: float = Field(default=0.35, ge=0, le=1)
    """Chance to finish after an edit without running the tests."""
    give_up: float = Field(default=0.3, ge=0, le=1)
    """Chance to finish after failed tests."""
    invalid_call: float = Field(default=0.06, ge=0, le=1)
    """Chance of a call that the harness rejects."""
    decline: float = Field(default=0.0, ge=0, le=1)
    """Chance to finish without any edit after reading the broken file; of synthetic tasks. ``sft.verified`` leaves such
    demonstrations out."""
    foreign_tool: float = Field(default=0.0, ge=0, le=1)
    """Chance to call a tool that does not exist before the broken file is read, like a policy that learned in another
    harness; of synthetic tasks. SFT learns these calls too, so that there is a habit for hints to correct."""
    wrong_file: float = Field(default=0.1, ge=0, le=1)
    """Chance to read a file that is not the broken one; of synthetic tasks."""
    undo: float = Field(default=0.75, ge=0, le=1)
    """Chance to undo an edit whose tests failed, before trying again."""
    reread: float = Field(default=0.85, ge=0, le=1)
    """Chance to read the file again before the next attempt. With the failed attempt between the file and the edit, a
    small policy copies badly: its second edits were right five times less often than its first ones."""
    hinted: float = Field(default=0.0, ge=0, le=1)
    """Share of the rejected calls for which an additional example is made: the call is replaced by a hint of
    ``rl.hints`` and the call that should have been made, so that a policy learns what hints mean."""
    max_edits: int = Field(default=5, ge=1)
    """Maximum number of attempts in one demonstration."""
    summary_plan: float = Field(default=0.0, ge=0, le=1)
    """Chance that a summary (``harness.summary``) states the next edit; after other summaries the file is read
    again."""
    concurrency: int = Field(default=16, ge=1)
    """Number of episodes at the same time."""

    @property
    def any(self) -> bool:
        """Return whether there is anything to learn from in SFT."""
        return bool(self.episodes or self.conversations)


class SFTSettings(Settings):
    """Supervised fine-tuning on the demonstrations; loss on the policy's own tokens only."""

    epochs: int = Field(default=1, ge=1)
    """Number of passes over the demonstrations."""
    batch_tokens: int = Field(default=1024, ge=16)
    """Tokens per optimizer step."""
    matrix_lr: float = Field(default=0.014, ge=0)
    """Peak learning rate of Muon (matrices); 0 trains everything with AdamW."""
    other_lr: float = Field(default=2.1e-3, gt=0)
    """Peak learning rate of AdamW."""
    microbatch_tokens: int = Field(default=4096, ge=16)
    """Maximum number of padded tokens per forward pass."""
    recompute: bool = False
    """Recompute activations in the backward pass to save memory."""
    products: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the operands of matrix products, see ``train.products``."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum length in tokens; longer demonstrations are cut."""
    verified: bool = False
    """Learn only from demonstrations that were graded as solved and whose last edit was followed by a passing test.
    The others teach to stop early."""


class SolvedSettings(Settings):
    """SFT on solved rollouts: on those of RL, for its final policy, and on those of rejection sampling, as a
    baseline."""

    after_rl: bool = False
    """After RL, train the run's final policy anew: SFT of the policy before SFT, on the verified demonstrations and all
    distinct rollouts that RL solved."""
    wasted_call_weight: float = Field(default=0.0, ge=0, le=1)
    """Loss weight of calls that were rejected and of edits that were undone. A solved rollout has many of them; at 1
    they are learned as much as the calls that solved the task."""


class MtpSettings(Settings):
    """A multi-token-prediction head that drafts tokens for the engine (speculative decoding), distilled from the policy
    after SFT."""

    steps: int = Field(default=0, ge=0)
    """Number of optimizer steps; 0 makes no head."""
    batch_tokens: int = Field(default=2048, ge=16)
    """Tokens per optimizer step."""
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate of AdamW."""
    depth: int = Field(default=2, ge=1, le=8)
    """Number of consecutive tokens that the head is trained to draft, each from its own previous output."""


class LearnSettings(Settings):
    """The supervised stages before RL."""

    corpus: CorpusSettings = CorpusSettings()
    """Tokenizer and pretraining text (policies from scratch only)."""
    pretrain: PretrainSettings = PretrainSettings()
    """Pretraining (policies from scratch only)."""
    demonstrations: DemonstrationSettings = DemonstrationSettings()
    """Demonstrations for SFT."""
    sft: SFTSettings = SFTSettings()
    """Supervised fine-tuning."""
    mtp: MtpSettings = MtpSettings()
    """The draft (MTP) head; none if its ``steps`` is 0."""
    solved: SolvedSettings = SolvedSettings()
    """SFT on solved rollouts."""

    @model_validator(mode="after")
    def _check(self) -> LearnSettings:
        if self.solved.after_rl and self.mtp.steps:
            raise ValueError(
                "the head of learn.mtp is distilled from the policy that RL starts from, and "
                "learn.solved.after_rl makes another one at the end, which would have none; use one of the two"
            )
        return self
