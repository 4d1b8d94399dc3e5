"""What can be wrong with a weight chain."""

from __future__ import annotations


class ChainError(Exception):
    """A weight chain cannot be written or read as asked; the message names the file."""


class WrongBase(ChainError):
    """A delta was offered to weights other than those it was made from."""


class TornVersion(ChainError):
    """A version's files are damaged: short, undecodable, or not matching their checksums."""


class PublisherFenced(ChainError):
    """Another publisher has taken over the chain; what this one writes does not count."""


class ChainReplaced(ChainError):
    """Another chain lies where the held weights came from, or none."""


class VersionConflict(ChainError):
    """A version was published twice with different weights, or out of order."""
