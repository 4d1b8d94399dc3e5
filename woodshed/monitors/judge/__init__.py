"""The monitor that is a model: an OpenAI-compatible endpoint reads the evidence and answers with a strict verdict.

Off unless the recipe asks for it. What it reads was written by the policy that it judges, so nothing in it can be taken
for an instruction or for the answer (``evidence``, ``verdict``), and what goes wrong is counted, never a verdict.
"""

from .ask import Judge, JudgeError, judge_key
from .verdict import Ruling

__all__ = ["Judge", "JudgeError", "Ruling", "judge_key"]
