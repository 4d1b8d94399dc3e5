"""Isolated computers for everything that a policy writes or runs."""

from .backends import open_backend

__all__ = ["open_backend"]
