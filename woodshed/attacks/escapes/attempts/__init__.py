"""Escape attempts. This package is copied into the box and runs there: standard library and relative imports only."""

from . import files, network, privileges, processes
from .base import ATTEMPTS

__all__ = ["ATTEMPTS", "files", "network", "privileges", "processes"]
