"""Chat formats: conversation -> tokens, sampled tokens -> message. ``FORMATS`` lists their names."""

from __future__ import annotations

from collections.abc import Collection

from .base import ChatFormat
from .compact import CompactFormat
from .hermes import HermesFormat
from .kimi_k2 import KimiK2Format
from .llama3 import Llama3Format
from .qwen3_coder import Qwen3CoderFormat

_FORMATS: dict[str, ChatFormat] = {
    f.name: f for f in (CompactFormat(), HermesFormat(), Qwen3CoderFormat(), Llama3Format(), KimiK2Format())
}
FORMATS: tuple[str, ...] = tuple(_FORMATS)


def get_format(name: str) -> ChatFormat:
    """The format of that name. Raises ValueError listing the names."""
    try:
        return _FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown chat format {name!r}; known: {', '.join(FORMATS)}") from None


def detect_format(control_tokens: Collection[str], template: str = "") -> ChatFormat:
    """The format that a vocabulary with these control tokens was made for.

    Where several fit (Qwen3 and Qwen3-Coder have one vocabulary), ``template``, the Jinja text that came with it,
    decides. Raises ValueError where nothing fits or nothing decides; the message says what to set.
    """
    fitting = [f for f in _FORMATS.values() if set(f.signature) <= set(control_tokens)]
    if not fitting:
        raise ValueError(
            "the vocabulary has the control tokens of no known chat format; set policy.format to the one it was "
            f"trained with: {', '.join(FORMATS)}"
        )
    if len(fitting) > 1:
        told = [f for f in fitting if f.template_mark in template]
        fitting = told if len(told) == 1 else fitting
    if len(fitting) > 1:
        names = " and ".join(f.name for f in fitting)
        raise ValueError(
            f"the vocabulary fits the chat formats {names}, and the directory has no chat template that tells which; "
            "set policy.format to one of them"
        )
    return fitting[0]
