"""Validation of tasks: gates, leak scans, near-duplicates across splits, contamination of training data."""
