"""Chat formats: conversation -> tokens, sampled tokens -> message. ``FORMATS`` lists their names."""

from __future__ import annotations

from woodshed.policy.formats.base import ChatFormat
from woodshed.policy.formats.compact import CompactFormat
from woodshed.policy.formats.hermes import HermesFormat

_FORMATS: dict[str, ChatFormat] = {f.name: f for f in (CompactFormat(), HermesFormat())}
FORMATS: tuple[str, ...] = tuple(_FORMATS)


def get_format(name: str) -> ChatFormat:
    """The format of that name. Raises ValueError listing the names."""
    try:
        return _FORMATS[name]
    except KeyError:
        raise ValueError(f"unknown chat format {name!r}; known: {', '.join(FORMATS)}") from None
