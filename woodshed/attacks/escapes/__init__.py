"""Attempts to escape from a box, and of one box to disturb another, run from inside to test a machine's isolation."""
