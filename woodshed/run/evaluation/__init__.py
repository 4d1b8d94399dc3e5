"""``woodshed evaluate``: policies side by side on suites; resumable, within budgets, graded again without agents."""
