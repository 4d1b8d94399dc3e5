"""What can be wrong with a weight chain."""

from __future__ import annotations


class ChainError(Exception):
    """A weight chain cannot be written or read as asked; the message names the file."""


class WrongBase(ChainError):
    """A delta was offered to weights other than those it was made from."""


class TornVersion(ChainError):
    """A version's files are damaged: short, undecodable, or not matching their checksums."""


class VersionConflict(ChainError):
    """A version was published twice with different weights, or out of order."""
