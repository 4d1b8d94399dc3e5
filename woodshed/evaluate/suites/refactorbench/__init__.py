"""RefactorBench, from a local copy: refactoring tasks for evaluation only, as the authors withhold the solutions."""
