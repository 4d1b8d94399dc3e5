"""Which chat format a run speaks."""

from __future__ import annotations

from woodshed.policy.formats import get_format
from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.settings import PolicySettings
from woodshed.record.run_directory import RunDirectory


def chat_format(settings: PolicySettings, run: RunDirectory) -> ChatFormat:
    """The run's chat format. That of a pretrained policy is decided when it is converted, so this comes after that."""
    if settings.source != "scratch":
        from woodshed.policy.hf import stored_format  # imports torch, which stages without a network do not need

        return stored_format(run.policy("pretrain"))
    return get_format("compact" if settings.format == "auto" else settings.format)
