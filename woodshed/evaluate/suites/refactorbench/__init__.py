"""RefactorBench as a person has it on disk: refactorings to measure with, whose solutions its authors keep back."""
