"""Refresh tasks by their ratings: harden those that became too easy, check those that nobody solved again."""
