"""The monitor that is a model: an OpenAI-compatible endpoint reads the evidence and answers with a strict verdict.

Off unless the recipe asks for it. The judged policy wrote the evidence, so prompt and parser ensure that no text in it
can pass as an instruction or as the answer (``ask``, ``verdict``). Failures are counted and never become a verdict.
"""

from .ask import Judge, JudgeError, judge_key
from .verdict import Ruling

__all__ = ["Judge", "JudgeError", "Ruling", "judge_key"]
