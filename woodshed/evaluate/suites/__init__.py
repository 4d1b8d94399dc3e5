"""Published benchmarks, and suites of our own, as tasks: one adapter for each."""
