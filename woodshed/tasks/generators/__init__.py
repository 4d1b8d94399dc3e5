"""Generators of tasks: from real packages, and from templates (synthetic tasks)."""
