"""Attacks on graders (reward without a fix) and on sandboxes (escapes, and one box disturbing another)."""
