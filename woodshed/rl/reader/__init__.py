"""A model that reads training episodes: hints for single messages, scores of rubrics (Composer 2.5)."""

from .settings import ReaderSettings, RubricSettings

__all__ = ["ReaderSettings", "RubricSettings"]
