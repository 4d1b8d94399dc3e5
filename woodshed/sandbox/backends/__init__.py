"""Sandbox backends, one folder each."""
