"""Isolated computers for everything that a policy writes or runs."""

from woodshed.sandbox.backends.by_name import open_backend

__all__ = ["open_backend"]
