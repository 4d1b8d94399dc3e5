"""Which chat format a run speaks."""

from __future__ import annotations

from ..policy.formats import get_format
from ..policy.formats.base import ChatFormat
from ..policy.settings import PolicySettings
from .directory import RunDirectory


def chat_format(settings: PolicySettings, run: RunDirectory) -> ChatFormat:
    """The run's chat format. That of a pretrained policy is decided when it is converted, so this comes after that."""
    if settings.source != "scratch":
        from ..policy.hf import stored_format  # imports torch, which stages without a network do not need

        return stored_format(run.policy("pretrain"))
    return get_format("compact" if settings.format == "auto" else settings.format)
