"""Benchmarks of others as tasks: one adapter for each."""
