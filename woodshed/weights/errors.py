"""Errors of weight chains."""

from __future__ import annotations


class ChainError(Exception):
    """A weight chain cannot be written or read; the message names the file."""


class WrongBase(ChainError):
    """A delta was made from other weights than those held."""


class TornVersion(ChainError):
    """A version's files are damaged: too short, undecodable, or not matching their checksums."""


class PublisherFenced(ChainError):
    """Another publisher has taken over the chain; what this one writes is ignored."""


class ChainReplaced(ChainError):
    """The chain that the held weights came from was deleted, or another one is in its place."""


class VersionConflict(ChainError):
    """A version was published twice with different weights, or out of order."""
