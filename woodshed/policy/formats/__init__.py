"""Chat formats: conversation -> tokens, sampled tokens -> message. ``FORMATS`` lists the built-in names.

To add one, write a class with the members of ``ChatFormat`` (``base.py``) in a file of its own, anywhere; the shortest
is a subclass of a built-in format. Put ``"my_module:MyFormat"`` where a recipe (``policy.format``) or ``woodshed serve
--format`` names the format. The class is called without arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from woodshed.record.settings import is_reference, load_reference

if TYPE_CHECKING:
    from .base import ChatFormat

_PLACES = {
    "compact": f"{__name__}.compact:CompactFormat",
    "hermes": f"{__name__}.hermes:HermesFormat",
    "qwen3_coder": f"{__name__}.qwen3_coder:Qwen3CoderFormat",
    "llama3": f"{__name__}.llama3:Llama3Format",
    "kimi_k2": f"{__name__}.kimi_k2:KimiK2Format",
}
FORMATS: tuple[str, ...] = tuple(_PLACES)

_loaded: dict[str, ChatFormat] = {}


def get_format(name: str) -> ChatFormat:
    """Return the format of a built-in name, or of a reference ``"module:Class"``, whose module is imported.

    Raises ValueError that says what is wrong.
    """
    if name not in _loaded:
        chat = _load(name)
        _loaded[name] = _loaded[format_name(chat)] = chat
    return _loaded[name]


def is_loaded(name: str) -> bool:
    """Return whether ``get_format`` can return this format without importing modules other than Woodshed's."""
    return name in _PLACES or name in _loaded


def format_name(chat: ChatFormat) -> str:
    """Return the name by which ``get_format`` finds this format: a built-in name, or ``"module:Class"``."""
    reference = f"{type(chat).__module__}:{type(chat).__qualname__}"
    return next((name for name, place in _PLACES.items() if place == reference), reference)


def detect_format(control_tokens: Collection[str], template: str = "") -> ChatFormat:
    """Return the built-in format that a vocabulary with these control tokens was made for.

    If several formats fit (Qwen3 and Qwen3-Coder have the same vocabulary), ``template``, the Jinja text that came with
    it, decides. Raises ValueError if there is not exactly one; the message says what to set.
    """
    fitting = [f for f in map(get_format, FORMATS) if set(f.signature) <= set(control_tokens)]
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


def _load(name: str) -> ChatFormat:
    if name not in _PLACES and not is_reference(name):
        raise ValueError(f"unknown chat format {name!r}; known: {', '.join(FORMATS)}, or 'module:Class'")
    kind = load_reference(_PLACES.get(name, name))
    if not isinstance(kind, type):
        raise ValueError(f"{name!r} is not a class")
    try:
        chat = kind()
    except Exception as error:  # whatever a user's class raises
        raise ValueError(f"{name!r} cannot be called without arguments: {type(error).__name__}: {error}") from error

    from .base import MEMBERS  # here, because the names alone need no tokenizer

    if missing := [member for member in MEMBERS if not hasattr(chat, member)]:
        raise ValueError(f"{name!r} is not a chat format: it has no {', '.join(missing)}; see ChatFormat")
    return chat
