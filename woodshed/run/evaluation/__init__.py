"""``woodshed evaluate``: compare policies on suites; resumable, within budgets, with regrading of stored episodes."""
