"""Attempts of one box against another. Copied into both boxes: standard library and relative imports only."""

from . import base, channels, processor, resources
from .base import PAIRS

__all__ = ["PAIRS", "base", "channels", "processor", "resources"]
