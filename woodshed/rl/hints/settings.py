"""Settings of hint distillation: which messages get a hint, and their weight. The loss is ``train.hint_kl``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from woodshed.record.settings import Settings

from .triggers import DEFAULT, load_trigger


class HintSettings(Settings):
    """Targeted textual feedback: for a message that went wrong, the teacher is the policy with a hint before it."""

    weight: float = Field(default=0.0, ge=0)
    """Weight of the loss part ``hint_kl`` for each token of a marked message, added to the policy gradient. With 0 the
    findings of the triggers are only counted."""
    triggers: tuple[str, ...] = DEFAULT
    """Triggers that mark messages: unknown_tool, invalid_arguments, unread_edit, no_change, syntax_error,
    repeated_failure, untested_finish, edited_tests, open_todos, long_message, reader (the model of ``rl.reader``), or
    ``"module:function"`` of your own. All but the last two of these names by default."""
    per_trajectory: int = Field(default=4, ge=1)
    """Maximum number of messages of one episode that are trained on, the earliest first."""
    token_share: float = Field(default=1.0, gt=0, le=1)
    """Maximum share of a batch's sampled tokens that belong to marked messages. The first messages of all episodes are
    taken before the second ones, and so on; one that does not fit any more is left out."""
    role: Literal["user", "system", "tool"] = "user"
    """Role of the message that carries the hint. The chat format ``compact`` renders no system messages, and user
    messages only at the beginning of a conversation: use ``tool`` with it."""

    @field_validator("triggers")
    @classmethod
    def _loadable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("rl.hints.triggers names a trigger twice")
        for name in value:
            load_trigger(name)
        return value
