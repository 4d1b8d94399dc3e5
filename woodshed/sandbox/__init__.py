"""Isolated computers for everything that a policy writes or runs."""
