"""Attempts to be paid without the work, and to get out of a box."""
